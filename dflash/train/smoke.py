"""`make train-smoke`: the whole pipeline on a toy target, in a couple of minutes on one core.

A tiny Llama learns a language of fixed phrases; both kinds of drafters are trained on its answers through the command
line, one of the runs is killed and resumed; the acceptance length must rise from 1.0 to above 2.5, and the exported files
are recorded with logits and drafts for the C runtime to check (tests/golden/test_trained.c)."""
from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from .batch import Loader
from .data import Folder, ShardWriter
from .draft import load_dflash
from .eagle import EagleObjective, load_eagle
from .evaluate import write_reference
from .generate import Generator, Job
from .losses import Vocabulary, count_tokens
from .objective import DFlashObjective, Options
from .target import Target, TargetConfig, load_target
from .train import measure

TAPS, VOCAB, GOAL = (1, 3, 4, 5), 160, 2.5
CONFIG = TargetConfig("llama", hidden=64, layers=8, heads=4, kv_heads=2, head_dim=16, inter=128, vocab=VOCAB, eps=1e-5,
                      theta=1e4, context=256, qk_norm=False)


def sentence(rng: random.Random, phrases: list[list[int]], n: int) -> list[int]:
    """n tokens of the language: phrases in a row, each followed by one of two others."""
    out, at = [], rng.randrange(len(phrases))
    while len(out) < n:
        out += phrases[at]
        at = (at * 2 + (rng.random() < 0.25) + 1) % len(phrases)
    return out[:n]


def weight_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the target's tensors; the head is tied."""
    c = CONFIG
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab, c.hidden), "model.norm.weight": (c.hidden,)}
    for i in range(c.layers):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (c.hidden,), p + "post_attention_layernorm.weight": (c.hidden,),
                   p + "self_attn.q_proj.weight": (q, c.hidden), p + "self_attn.k_proj.weight": (kv, c.hidden),
                   p + "self_attn.v_proj.weight": (kv, c.hidden), p + "self_attn.o_proj.weight": (c.hidden, q),
                   p + "mlp.gate_proj.weight": (c.inter, c.hidden), p + "mlp.up_proj.weight": (c.inter, c.hidden),
                   p + "mlp.down_proj.weight": (c.hidden, c.inter)}
    return shapes


def train_target(path: str, phrases: list[list[int]], steps: int) -> None:
    """Trains the toy target and writes it as a Hugging Face directory."""
    torch.manual_seed(5)
    rng = random.Random(5)
    weights = {n: torch.ones(s) if len(s) == 1 else torch.randn(s) * 0.08 for n, s in weight_shapes().items()}
    for w in weights.values():
        w.requires_grad_()
    optimizer = torch.optim.AdamW(weights.values(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1, (step + 1) / 20) * min(1.0, 0.05 + 2 * (1 - step / steps))
        ids = torch.tensor([sentence(rng, phrases, 49) for _ in range(12)])
        target = Target(CONFIG, weights.get)
        final, _, _ = target.run(ids[:, :-1])
        loss = F.cross_entropy(target.logits(final).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"target: loss {loss.item():.3f}", flush=True)
    os.makedirs(path, exist_ok=True)
    c = CONFIG
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=c.hidden, intermediate_size=c.inter,
                       num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim,
                       vocab_size=c.vocab, rms_norm_eps=c.eps, rope_theta=c.theta, max_position_embeddings=c.context,
                       hidden_act="silu", tie_word_embeddings=True, torch_dtype="float32", eos_token_id=VOCAB - 2), f)
    save_file({n: w.detach() for n, w in weights.items()}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})


def make_data(path: str, target: Target, phrases: list[list[int]]) -> None:
    """Answers of the toy target with features, a fifth of them sampled."""
    rng = random.Random(9)
    jobs = [Job(str(i), sentence(rng, phrases, rng.randint(6, 14)), 40, 0.0 if i % 5 else 0.7, "toy") for i in range(240)]
    writer = ShardWriter(path, "0", dict(target="toy", taps=list(TAPS), hidden=CONFIG.hidden, vocab=VOCAB))
    for job in Generator(target, 48, 64, {VOCAB - 2}, 3, TAPS).run(jobs):
        writer.write(job)


def command(out: str, kind: str, *extra: str) -> list[str]:
    """A train command on the toy's folders."""
    return [sys.executable, "-m", "dflash.train", "train", "--target", f"{out}/target", "--data", f"{out}/data", "--out", f"{out}/run-{kind}",
            "--kind", kind, "--vocab", "128", "--extra", "0", "--records", "6", "--together", "6", "--lr", "3e-3", "--validate", "100",
            "--val-records", "8", "--holdout", "6", "--report", "50", "--minutes", "3", "--save-seconds", "1", "--seed", "3", *extra]


def killed_and_resumed(argv: list[str], state: str) -> str:
    """Starts a run, kills it once it has saved its state, runs it again; returns what the second run said."""
    first = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    while not os.path.exists(state) and first.poll() is None:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=True)
    if "resumed at step" not in second.stderr:
        raise SystemExit("train-smoke: the run ended before it could be killed")
    return second.stderr


def main(out: str) -> None:
    """Runs everything under the folder `out`; ends with a line of counts, or raises SystemExit."""
    torch.set_num_threads(1)
    shutil.rmtree(out, ignore_errors=True)
    rng = random.Random(2)
    phrases = [[rng.randrange(3, 120) for _ in range(rng.randint(5, 9))] for _ in range(16)]
    train_target(f"{out}/target", phrases, 180)
    target = load_target(f"{out}/target")
    make_data(f"{out}/data", target, phrases)
    folder = Folder(f"{out}/data")
    passed = 0
    for kind, extra in (("dflash", ("--block", "8", "--mask-id", "159", "--taps", "1,3,5", "--gamma", "4", "--rows", "128", "--steps", "220", "--causal")),
                        ("eagle3", ("--states", "5", "--taps", "1,3,4", "--inter", "96", "--steps", "160"))):
        start = drafter_tau(kind, None, target, folder, command(out, kind, *extra))
        argv = command(out, kind, *extra)
        said = killed_and_resumed(argv, f"{out}/run-{kind}/state.pt")
        tau = drafter_tau(kind, f"{out}/run-{kind}/best", target, folder, argv)
        print(f"{kind}: tau {start:.2f} untrained, {tau:.2f} trained; {said.splitlines()[1]}", flush=True)
        if start > 1.3 or tau < GOAL:
            raise SystemExit(f"train-smoke: {kind}: expected about 1.0 before and over {GOAL} after training")
        passed += 1
        write_reference(f"{out}/trained/{kind}", *objective_of(kind, f"{out}/run-{kind}/best", target, folder), target)
    shutil.copytree(f"{out}/target", f"{out}/trained/target")
    print(f"train-smoke: {passed} drafters trained, killed, resumed and exported")


def objective_of(kind: str, path: str, target: Target, folder: Folder):
    """(objective, loader, held-out records) of an exported checkpoint."""
    if kind == "dflash":
        draft = load_dflash(path, target)
        objective = DFlashObjective(draft, target, Vocabulary(count_tokens([]), VOCAB, VOCAB, 0), Options(), torch.float32)
    else:
        draft = load_eagle(path, target)
        objective = EagleObjective(draft, target, 5, 0.8, 0.5, 1.0)
    records = [r for r in folder.records() if r.held_out(6) and r.temp == 0][:8]
    return objective, Loader(folder, target, draft.taps, torch.float32, "cpu"), records


def drafter_tau(kind: str, path: str | None, target: Target, folder: Folder, argv: list[str]) -> float:
    """Acceptance length of a checkpoint, or of a cold drafter after no step (path None)."""
    if path is None:
        path = argv[argv.index("--out") + 1] + "-cold"
        run = [*argv, "--init", "cold", "--steps", "0", "--out", path]
        subprocess.run(run, check=True, stderr=subprocess.DEVNULL)
        path += "/last"
    objective, loader, records = objective_of(kind, path, target, folder)
    return measure(objective, loader, records)[0]


if __name__ == "__main__":
    main(sys.argv[1])
