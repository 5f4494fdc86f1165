"""The training loop: the same for both kinds of drafters, on one core, several processes, or GPUs.

Owns: optimiser, schedule, averaging, checkpoints of the run, curves. A run folder holds state.pt (everything that resuming
needs), best/ and last/ (exported checkpoints) and curve.csv. Must not know: how a loss is computed."""
from __future__ import annotations

import csv
import math
import os
import sys
import time
from typing import Callable

import torch
import torch.distributed as dist

from .batch import Loader, Order
from .data import Record
from .errors import TrainError
from .objective import Round, Stats


class Run:
    """One training run. `objective` has module, seed(), loss(batch), rounds(batch); `export(path)` writes the
    module as it stands."""

    def __init__(self, objective, loader: Loader, train: list[Record], val: list[Record], out: str, args, export: Callable[[str, dict], None],
                 follow: Callable[[], list[Record]] | None = None):
        self.objective, self.loader, self.val, self.out, self.args, self.export = objective, loader, val, out, args, export
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.params = [p for p in objective.module.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.params]
        self.optimizer = torch.optim.AdamW(self.params, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay)
        self.order = Order(train, args.seed, self.rank, self.world, follow)
        self.step, self.spent, self.cpu, self.best = 0, 0.0, 0.0, 0.0
        self.window = Stats()
        os.makedirs(out, exist_ok=True)
        self._resume()

    # ---- state ----

    def _resume(self) -> None:
        file = os.path.join(self.out, "state.pt")
        if not os.path.exists(file):
            return
        state = read_state(file, self.params)
        with torch.no_grad():
            for p, a, sp, sa in zip(self.params, self.average, state["params"], state["average"]):
                p.copy_(sp)
                a.copy_(sa)
        self.optimizer.load_state_dict(state["optimizer"])
        self.order.restore(state["order"])
        self.step, self.spent, self.cpu, self.best = state["step"], state["spent"], state["cpu"], state["best"]
        self.say(f"resumed at step {self.step}")

    def save(self) -> None:
        """state.pt, written beside and renamed, so that a kill leaves the old one."""
        if self.rank:
            return
        file = os.path.join(self.out, "state.pt")
        state = dict(params=[p.detach() for p in self.params], average=self.average, optimizer=self.optimizer.state_dict(),
                     order=self.order.state(), step=self.step, spent=self.spent, cpu=self.cpu, best=self.best)
        try:
            torch.save(state, file + ".tmp")
            os.replace(file + ".tmp", file)
        except (OSError, RuntimeError) as e:
            raise TrainError(f"{file}: {e} (the state before it is kept)") from e

    def say(self, text: str) -> None:
        """A line on stderr, from the first process only."""
        if not self.rank:
            print(text, file=sys.stderr, flush=True)

    # ---- loop ----

    def learn(self) -> None:
        """Until --minutes of training or --steps are over (both count what ran before a resume)."""
        a, last_save = self.args, time.monotonic()
        while self._fraction() < 1:
            began, cpu = time.monotonic(), time.process_time()
            lr = self._rate()
            self.window.add(self._update(lr))
            self.spent, self.cpu = self.spent + time.monotonic() - began, self.cpu + time.process_time() - cpu
            self.step += 1
            if self.step % a.report == 0:
                self._log(lr)
            if self.step % a.validate == 0:
                self.evaluate()
            if time.monotonic() - last_save > a.save_seconds:
                self.save()
                last_save = time.monotonic()
        if self.step == 0 or self.step % a.validate:
            self.evaluate()
        self.save()

    def _fraction(self) -> float:
        """Share of the run that is over; all ranks agree, since the clock of the first decides."""
        f = self._done()
        if self.world > 1:
            t = torch.tensor([f], device=self.loader.device)
            dist.broadcast(t, 0)
            f = float(t)
        return f

    def _done(self) -> float:
        """The same by this process's own clock."""
        return 1.0 if self.step >= self.args.steps else max(self.step / self.args.steps, self.spent / (60 * self.args.minutes))

    def _rate(self) -> float:
        """Warm-up, a plateau, and a linear cool-down to 3 % over the last --cooldown share of the run."""
        a = self.args
        rest = min(1.0, (1 - self._fraction()) / max(1e-9, a.cooldown))
        return a.lr * min(1.0, (self.step + 1) / a.warmup) * (0.03 + 0.97 * max(0.0, rest))

    def _update(self, lr: float) -> Stats:
        """One optimiser step over --records records of every rank."""
        a, stats = self.args, Stats()
        self.objective.seed((a.seed * 7919 + self.step) * 64 + self.rank)
        records = self.order.take(a.records)
        groups = [records[i:i + a.together] for i in range(0, len(records), a.together)]
        for p in self.params:
            p.grad = None
        for group in groups:
            with torch.autocast(self.loader.device.split(":")[0], torch.bfloat16, enabled=a.dtype == "bf16"):
                loss, s = self.objective.loss(self.loader.batch(group))
            if not math.isfinite(float(loss.detach())):
                raise TrainError(f"step {self.step}: the loss is {float(loss.detach())}; {self.out}/best and state.pt are from before it. Lower --lr")
            (loss * (len(group) / len(records))).backward()
            stats.add(s)
        norm = self._reduce()
        for g in self.optimizer.param_groups:
            g["lr"] = lr
        if math.isfinite(norm):
            self.optimizer.step()
        with torch.no_grad():
            mix = min(a.average, (self.step + 1) / (self.step + 10))
            for p, m in zip(self.params, self.average):
                m.lerp_(p, 1 - mix)
        return stats

    def _reduce(self) -> float:
        """Mean gradient over ranks, clipped to --clip; returns its norm."""
        grads = [p.grad for p in self.params]
        if self.world > 1:
            flat = torch.cat([g.reshape(-1) for g in grads])
            dist.all_reduce(flat)
            flat /= self.world
            for g, part in zip(grads, flat.split([g.numel() for g in grads])):
                g.copy_(part.view_as(g))
        return float(torch.nn.utils.clip_grad_norm_(self.params, self.args.clip))

    # ---- reports ----

    def _log(self, lr: float) -> None:
        s, self.window = self.window, Stats()
        if self.rank:
            return
        done = max(1e-9, self._done())
        loss, acc = s.loss / max(1e-9, s.weight), s.accuracy(4)
        self._curve(dict(step=self.step, seconds=round(self.spent), cpu=round(self.cpu), lr=f"{lr:.3g}", loss=f"{loss:.4f}",
                         **{f"acc{i + 1}": f"{x:.4f}" for i, x in enumerate(acc)}))
        self.say(f"step {self.step} epoch {self.order.epoch} {self.spent:.0f}s cpu {self.cpu:.0f}s lr {lr:.1e} loss {loss:.3f} acc "
                 + " ".join(f"{x:.3f}" for x in acc) + f" left {self.spent * (1 - done) / done / 60:.0f} min")

    def _curve(self, row: dict) -> None:
        """Appends to curve.csv."""
        fields = ["step", "seconds", "cpu", "lr", "loss", "acc1", "acc2", "acc3", "acc4", "tau"]
        file = os.path.join(self.out, "curve.csv")
        new = not os.path.exists(file)
        with open(file, "a", newline="", encoding="utf-8") as f:
            w = csv.DictWriter(f, fields)
            if new:
                w.writeheader()
            w.writerow(row)

    def swap(self) -> None:
        """Exchange the weights with their running average."""
        with torch.no_grad():
            for p, m in zip(self.params, self.average):
                kept = p.detach().clone()
                p.copy_(m)
                m.copy_(kept)

    def evaluate(self) -> float:
        """Acceptance length of the averaged weights on the validation part; exports them, and as best/ if they are."""
        if self.rank:
            return 0.0
        self.swap()
        tau, accepted = measure(self.objective, self.loader, self.val)
        self._curve(dict(step=self.step, seconds=round(self.spent), cpu=round(self.cpu), tau=f"{tau:.4f}"))
        self.say(f"step {self.step} tau {tau:.3f} accepted by position " + " ".join(f"{x:.3f}" for x in accepted[:6]))
        info = dict(step=self.step, cpu_seconds=round(self.cpu), tau=round(tau, 4))
        self.export(os.path.join(self.out, "last"), info)
        if tau > self.best:
            self.best = tau
            self.export(os.path.join(self.out, "best"), info)
        self.swap()
        return tau


def read_state(file: str, params: list[torch.nn.Parameter]) -> dict:
    """A run's state.pt, checked against the parameters it is for."""
    try:
        state = torch.load(file, map_location="cpu")
    except Exception as e:
        raise TrainError(f"{file}: {type(e).__name__}: {e}") from e
    if [list(t.shape) for t in state["params"]] != [list(p.shape) for p in params]:
        raise TrainError(f"{file}: the run was made with another drafter shape; use another --out or remove it")
    return state


def restore_average(module: torch.nn.Module, file: str) -> None:
    """Puts the averaged weights of a run's state.pt into the module."""
    params = [p for p in module.parameters() if p.requires_grad]
    with torch.no_grad():
        for p, average in zip(params, read_state(file, params)["average"]):
            p.copy_(average)


def measure(objective, loader: Loader, records: list[Record]) -> tuple[float, list[float]]:
    """(tokens per round, share of rounds that accept position >= k for k = 1, 2, ...) of a chain over the records."""
    rounds = [r for record in records for r in objective.rounds(loader.batch([record]))]
    return summary(rounds)


def summary(rounds: list[Round]) -> tuple[float, list[float]]:
    """Acceptance length, bonus included, and acceptance by position."""
    if not rounds:
        return 1.0, [0.0]
    return (sum(r.gained for r in rounds) / len(rounds),
            [sum(r.accepted > k for r in rounds) / len(rounds) for k in range(len(rounds[0].drafts))])
