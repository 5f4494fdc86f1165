"""`eval`: acceptance of a checkpoint on recorded greedy answers, and recordings for other runtimes.

Owns: the tables. Greedy verification accepts a draft exactly where it agrees with the target's own answer, so a recorded
answer is enough; nothing is decoded here."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass

import torch

from .batch import Loader
from .data import Folder, Record
from .errors import TrainError
from .generate import loop_start
from .objective import Round
from .target import Target, load_target
from .train import summary

BINS = 10


@dataclass
class Report:
    """What `evaluate` found; `text` is the table that is shown."""

    tau: float
    text: str


def evaluate(objective, loader: Loader, records: list[Record], width: int | None = None, ids: torch.Tensor | None = None, shuffle: bool = True) -> Report:
    """Acceptance length by category, with and without looping answers; acceptance by position; calibration; the same
    with features shuffled over positions, and with the head cut to `ids`."""
    by: dict[str, list[Round]] = {}
    plain, shuffled, cut = [], [], []
    noise = torch.Generator().manual_seed(0)
    for r in records:
        b = loader.batch([r])
        rounds = objective.rounds(b, width)
        by.setdefault(r.source, []).extend(rounds)
        if loop_start(r.answer) is None:
            plain += rounds
        if shuffle:
            order = torch.randperm(b.taps.shape[1], generator=noise)
            shuffled += objective.rounds(b, width, taps=b.taps[:, order.to(b.taps.device)])
        if ids is not None:
            cut += objective.rounds(b, width, ids=ids)
    rounds = [r for part in by.values() for r in part]
    tau, accepted = summary(rounds)
    lines = [f"{len(records)} answers, {len(rounds)} rounds: tau {tau:.3f}; without looping answers {summary(plain)[0]:.3f}"]
    lines += [f"  {name:<12} tau {summary(part)[0]:.3f}  ({len(part)} rounds)" for name, part in sorted(by.items())]
    lines.append("  accepted at position k: " + " ".join(f"{x:.3f}" for x in accepted))
    if shuffle:
        lines.append(f"  features shuffled over positions: tau {summary(shuffled)[0]:.3f}")
    if ids is not None:
        lines.append(f"  head cut to {len(ids)} ids: tau {summary(cut)[0]:.3f}")
    return Report(tau, "\n".join(lines + calibration(rounds)))


def calibration(rounds: list[Round]) -> list[str]:
    """Lines of a table: the drafter's probability of its draft against how often it was right, over drafts whose
    predecessors were all right."""
    right, count, sure = [0] * BINS, [0] * BINS, [0.0] * BINS
    for r in rounds:
        for k in range(min(r.accepted + 1, len(r.drafts))):
            i = min(BINS - 1, int(r.confidence[k] * BINS))
            count[i], right[i], sure[i] = count[i] + 1, right[i] + (k < r.accepted), sure[i] + r.confidence[k]
    lines = ["  probability   drafts   mean   right"]
    for i in range(BINS):
        if count[i]:
            lines.append(f"  {i / BINS:.1f} to {(i + 1) / BINS:.1f} {count[i]:>9}   {sure[i] / count[i]:.3f}   {right[i] / count[i]:.3f}")
    return lines


@torch.no_grad()
def write_reference(path: str, objective, loader: Loader, records: list[Record], target: Target) -> None:
    """Records a drafter for other runtimes: beside its checkpoint, expected.json with prompts, greedy texts, rounds
    {start, draft_tokens, accepted}, and expected.safetensors with the drafter's logits of the first rounds."""
    from safetensors.torch import save_file

    from .export import write_checkpoint

    write_checkpoint(path, objective.module.config, objective.tensors())
    cases, tensors = [], {}
    for c, r in enumerate(records[:3]):
        b = loader.batch([r], exact=True)
        start, rounds = len(r.prompt), []
        for i, one in enumerate(objective.rounds(b)):
            rounds.append(dict(start=start, draft_tokens=one.drafts, accepted=one.accepted))
            if i < 4:
                tensors[f"case{c}.round{i}.draft_logits"] = objective.logits(b, start).contiguous()
            start += one.gained
        cases.append(dict(prompt=r.prompt, output_ids=r.prompt + r.answer, rounds=rounds))
    with open(os.path.join(path, "expected.json"), "w", encoding="utf-8") as f:
        json.dump(dict(cases=cases, block=getattr(objective.module, "block_size", None)), f)
    save_file(tensors, os.path.join(path, "expected.safetensors"))


def evaluate_folder(args) -> str:
    """The `eval` command; returns the table."""
    from .setup import draft_ids, frequent_ids, load_objective

    target, folder = load_target(args.target, device=args.device), Folder(args.data)
    folder.check(target)
    objective, taps = load_objective(target, args.drafter)
    records = [r for r in folder.records(cut_loops=False) if r.temp == 0]
    if folder.meta.get("use") != "eval":
        records = [r for r in records if r.held_out(args.holdout)]
    if not records:
        raise TrainError(f"{args.data}: no greedy answers to measure on")
    loader = Loader(folder, target, taps, torch.float32, args.device)
    ids = frequent_ids(args.vocab_data, args.vocab, target.config.vocab)
    if ids is None and not os.path.exists(os.path.join(args.drafter, "state.pt")):  # a run has none
        ids = draft_ids(args.drafter)
    report = evaluate(objective, loader, records, args.width, None if ids is None else ids.to(args.device), args.shuffle)
    if args.reference:
        write_reference(args.reference, objective, loader, records, target)
    return report.text
