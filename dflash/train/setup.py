"""Puts a training run together from the command line's options: target, data, drafter, objective, export.

Owns: the order of these steps and the checks between them."""
from __future__ import annotations

import os
from collections import Counter
from typing import Callable

import numpy as np
import torch
import torch.distributed as dist

from .batch import Loader
from .copying import copy_start
from .data import Folder, Record, pack_answers
from .draft import DFlash, load_dflash, new_config, read_config, read_tensors, warm_start
from .errors import TrainError
from .eagle import Eagle3, EagleObjective, load_eagle, new_eagle_config, warm_start_eagle
from .export import reduced_head, write_checkpoint
from .losses import Vocabulary, count_tokens
from .objective import DFlashObjective, Options
from .target import Target, load_target
from .train import Run, restore_average


def join_ranks(device: str) -> str:
    """Under torchrun: joins the group and returns this process's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return device
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    return device


def split(folder: Folder, context: int, holdout: int, n_val: int) -> tuple[list[Record], list[Record]]:
    """(train, val). The held-out part is chosen by prompt; val are its first n_val greedy records in a fixed order."""
    records = folder.records(context)
    val = sorted((r for r in records if r.held_out(holdout) and r.temp == 0), key=lambda r: r.prompt[::-1])[:n_val]
    train = [r for r in records if not r.held_out(holdout)]
    if not train:
        raise TrainError(f"{folder.path}: no record to train on")
    if not val:
        raise TrainError(f"{folder.path}: no greedy record among the held-out ones; make more data or lower --holdout")
    return train, val


def following(folder: Folder, args) -> Callable[[], list[Record]] | None:
    """With --follow: the training records as they are now."""
    return (lambda: split(folder, args.context, args.holdout, args.val_records)[0]) if args.follow else None


def make_dflash(args, target: Target, loader_taps: tuple[int, ...], sample: torch.Tensor) -> DFlash:
    """The drafter to train: read, warm or cold. sample [S, T*H]: features of some text, for the warm start."""
    if args.init not in ("warm", "cold"):
        draft = load_dflash(args.init, target)
        draft.config["block_size"] = draft.block_size = args.block
        draft.config["is_causal"] = draft.causal = draft.causal or args.causal
        return draft
    torch.manual_seed(args.seed)
    draft = DFlash(new_config(target, args.layers, loader_taps, args.block, args.mask_id, args.causal))
    if args.init == "warm":
        warm_start(draft, target, sample)
    else:
        with torch.no_grad():
            draft.norm.weight.fill_(0.1)
    return draft


def start_run(args) -> Run:
    """Everything up to the first step."""
    device = join_ranks(args.device)
    target = load_target(args.target, torch.float32, device)
    folder = Folder(args.data)
    folder.check(target)
    if folder.meta.get("use") == "eval":
        raise TrainError(f"{args.data}: a folder for `eval`, made of prompts that must not be trained on")
    train, val = split(folder, args.context, args.holdout, args.val_records)
    counts = count_tokens([r.answer for r in train])
    if args.kind == "eagle3":
        return _start_eagle(args, target, folder, train, val, counts, device)
    return _start_dflash(args, target, folder, train, val, counts, device)


def teach_copying(args, drafter: DFlash | Eagle3, target: Target, loader: Loader, train: list[Record]) -> None:
    """--copy-start, when a run begins."""
    if args.copy_start and not os.path.exists(os.path.join(args.out, "state.pt")):
        copy_start(drafter, target.embed, loader, train, args.copy_start)


def _start_dflash(args, target: Target, folder: Folder, train: list[Record], val: list[Record], counts: Counter, device: str) -> Run:
    taps = tuple(args.taps or folder.taps)
    if os.path.isdir(args.init):
        taps = tuple(read_config(args.init)["dflash_config"]["target_layer_ids"])
    loader = Loader(folder, target, taps, torch.float32, device)
    draft = make_dflash(args, target, taps, loader.batch(train[:1]).taps[0]).to(device)
    vocabulary = Vocabulary(counts, target.config.vocab, min(args.vocab, target.config.vocab), args.extra)
    options = Options(args.widths or (args.block,), args.rows, args.gamma, args.dpace, args.hard, args.temp, args.prompt_share,
                      args.copy)
    objective = DFlashObjective(draft, target, vocabulary, options, torch.float32)
    teach_copying(args, draft, target, loader, train)

    def export(path: str, info: dict) -> None:
        write_checkpoint(path, draft.config, objective.tensors(), info)

    run = Run(objective, loader, train, val, args.out, args, export, following(folder, args))
    run.say(f"{len(train)} records, {sum(counts.values())} answer tokens; {len(vocabulary.ids)} ids cover {vocabulary.coverage:.4f}; "
            f"{sum(p.numel() for p in run.params) / 1e6:.2f} M parameters; {len(val)} records to validate on")
    return run


def run_ids(out: str, choose: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The draft vocabulary of a run, chosen when it began: the data may have grown since, and the rows of the trained head
    belong to these ids."""
    file = os.path.join(out, "draft_ids.npy")
    if os.path.exists(file):
        return torch.from_numpy(np.load(file))
    ids = choose()
    os.makedirs(out, exist_ok=True)
    np.save(file + ".tmp.npy", ids.numpy())
    os.replace(file + ".tmp.npy", file)
    return ids


def _start_eagle(args, target: Target, folder: Folder, train: list[Record], val: list[Record], counts: Counter, device: str) -> Run:
    if os.path.isdir(args.init):
        head = load_eagle(args.init, target).to(device)
    else:
        n = target.config.layers
        taps = tuple(args.taps or (1, n // 2 - 1, n - 4))  # the published default: boundaries 2, L/2, L-3
        ids = run_ids(args.out, lambda: Vocabulary(counts, target.config.vocab, min(args.vocab, target.config.vocab), 0).ids)
        torch.manual_seed(args.seed)
        head = Eagle3(new_eagle_config(target, taps, args.inter or target.config.inter, len(ids)), ids).to(device)
        if args.init == "warm":
            warm_start_eagle(head, target)
    loader = Loader(folder, target, head.taps, torch.float32, device)
    objective = EagleObjective(head, target, args.states, 0.8, args.hard, args.temp, args.copy)
    teach_copying(args, head, target, loader, train)

    def export(path: str, info: dict) -> None:
        write_checkpoint(path, head.config, objective.tensors(), info)

    run = Run(objective, loader, train, val, args.out, args, export, following(folder, args))
    covered = sum(counts[i] for i in head.ids.tolist()) / max(1, sum(counts.values()))
    run.say(f"{len(train)} records, {sum(counts.values())} answer tokens; {len(head.ids)} ids cover {covered:.4f}; "
            f"{sum(p.numel() for p in run.params) / 1e6:.2f} M parameters; {len(val)} records to validate on")
    return run


def load_objective(target: Target, path: str):
    """(objective, taps) of a checkpoint of either kind, as far as measuring needs it. Of a run's own folder it takes the
    averaged weights of state.pt, which are newer than the run's last validation."""
    state = os.path.join(path, "state.pt")
    if os.path.exists(state):
        objective, taps = load_objective(target, os.path.join(path, "last"))
        restore_average(objective.module, state)
        return objective, taps
    if "eagle_config" in read_config(path):
        head = load_eagle(path, target).to(target.device)
        return EagleObjective(head, target, 5, 0.8, 0.5, 1.0), head.taps
    draft = load_dflash(path, target).to(target.device)
    vocabulary = Vocabulary(Counter(), target.config.vocab, 1, 0)
    return DFlashObjective(draft, target, vocabulary, Options(), torch.float32), draft.taps


def draft_ids(path: str) -> torch.Tensor | None:
    """The target's ids of a DFlash checkpoint's draft vocabulary, None where it has none."""
    if "dflash_config" not in read_config(path):
        return None
    d2t = read_tensors(path).get("d2t")
    return None if d2t is None else d2t + torch.arange(len(d2t))


def frequent_ids(path: str | None, size: int, vocab: int) -> torch.Tensor | None:
    """The `size` most frequent ids of a data folder, ascending; None for size 0. A prompt counts each of its ids once:
    what it asks about turns up in answers, its wording does not."""
    if not size:
        return None
    if not path:
        raise TrainError("--vocab needs --vocab-data, a data folder whose answers are counted")
    records = Folder(path).records()
    return Vocabulary(count_tokens([r.answer for r in records] + [sorted(set(r.prompt)) for r in records]), vocab, size, 0).ids


def export_checkpoint(args) -> None:
    """The `export` command: a checked copy of a checkpoint, for DFlash with a reduced head if asked for."""
    target = load_target(args.target)
    objective, _ = load_objective(target, args.drafter)
    config, tensors = dict(objective.module.config), objective.tensors()
    ids = frequent_ids(args.vocab_data, args.vocab, target.config.vocab)
    if ids is not None:
        if "eagle_config" in config:
            raise TrainError("--vocab is for DFlash; an EAGLE-3 head has its draft vocabulary from training")
        tensors |= reduced_head(target.head, ids, args.with_head)
        config["draft_vocab_size"] = len(ids)
    write_checkpoint(args.out, config, tensors)
    if args.ids:
        if not args.vocab_data:
            raise TrainError("--ids needs --vocab-data, the data folder to pack")
        pack_answers(Folder(args.vocab_data), args.ids)
