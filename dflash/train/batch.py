"""From records to tensors: padding, features (stored or recomputed), the order in which records are visited.

Owns: Example batches and the shuffled, resumable order."""
from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Callable

import torch

from .data import Folder, Record
from .errors import TrainError
from .target import Target


@dataclass
class Batch:
    """N records, padded on the right. ids [N, S+1]; taps [N, S, T*H] and final [N, S, H] of positions 0..S-1 in the
    training dtype; start [N]: position of the first answer token; length [N]: tokens of the record."""

    ids: torch.Tensor
    taps: torch.Tensor
    final: torch.Tensor
    start: torch.Tensor
    length: torch.Tensor


def copy_sources(ids: torch.Tensor, least: int = 3) -> torch.Tensor:
    """ids [N, L] -> [N, L]: for every token the place where the text before had it with the same least - 1 tokens before it,
    the longest such match and of those the latest; 0 where there is none."""
    n, length = ids.shape
    found, run = torch.zeros(n, length, dtype=torch.long), torch.zeros(n, length, dtype=torch.long)
    for t in range(1, length):  # run[j]: tokens that match up to ids[t] and ids[j]
        run[:, 1:t] = torch.where(ids[:, 1:t] == ids[:, t:t + 1], run[:, :t - 1] + 1, 0)
        if t > 1:
            longest, place = (run[:, 1:t] * length + torch.arange(1, t)).max(-1)
            found[:, t] = torch.where(longest >= least * length, place + 1, 0)
    return found


class Loader:
    """Makes batches of records; features come from the folder where it has them, else from a pass of the target."""

    def __init__(self, folder: Folder, target: Target, taps: tuple[int, ...], dtype: torch.dtype, device: str):
        self.folder, self.target, self.taps, self.dtype, self.device = folder, target, taps, dtype, device
        hidden = folder.hidden
        stored = folder.taps
        self.columns = None
        if set(taps) <= set(stored):
            place = torch.cat([torch.arange(hidden) + stored.index(t) * hidden for t in taps])
            self.columns = torch.cat([place, torch.arange(hidden) + len(stored) * hidden])

    def batch(self, records: list[Record], exact: bool = False) -> Batch:
        """Records of about the same length are best, since all are padded to the longest. `exact` computes the features
        even where they are stored, which is in bf16."""
        n = torch.tensor([len(r.prompt) + len(r.answer) for r in records])
        ids = torch.zeros(len(records), int(n.max()), dtype=torch.long)
        for row, r in zip(ids, records):
            row[:len(r.prompt) + len(r.answer)] = torch.tensor(r.prompt + r.answer)
        rows = None if exact else self._stored(records, int(n.max()) - 1)
        if rows is None:
            final, taps, _ = self.target.forward(ids[:, :-1].to(self.device), self.taps)
            rows = torch.cat([taps, final], -1)
        rows = rows.to(device=self.device, dtype=self.dtype)
        h = self.folder.hidden
        return Batch(ids.to(self.device), rows[..., :-h], rows[..., -h:], torch.tensor([len(r.prompt) for r in records]), n)

    def _stored(self, records: list[Record], s: int) -> torch.Tensor | None:
        found = [self.folder.features(r) if self.columns is not None else None for r in records]
        if any(f is None for f in found):
            return None
        out = torch.zeros(len(records), s, len(self.columns), dtype=torch.bfloat16)
        for row, f in zip(out, found):
            row[:len(f)] = f[:, self.columns]
        return out


class Order:
    """An endless shuffled order over records, split over ranks. Its state is two numbers, so a run resumes in place.
    With `follow`, the records are asked for again at every new epoch: the data may still be growing."""

    def __init__(self, records: list[Record], seed: int, rank: int, world: int, follow: Callable[[], list[Record]] | None = None):
        if len(records) < world:
            raise TrainError(f"{len(records)} records to train on, but {world} processes")
        self.records, self.seed, self.rank, self.world, self.follow = records, seed, rank, world, follow
        self.epoch, self.index, self.order = 0, 0, self._shuffle(0)

    def _shuffle(self, epoch: int) -> list[int]:
        order = list(range(len(self.records)))
        random.Random(self.seed * 1000 + epoch).shuffle(order)
        return order[self.rank::self.world]

    def take(self, n: int) -> list[Record]:
        """The next n records, sorted by length so that neighbours pad little."""
        out = []
        for _ in range(n):
            if self.index >= len(self.order):
                self.epoch, self.index = self.epoch + 1, 0
                self.records = self.follow() if self.follow else self.records
                self.order = self._shuffle(self.epoch)
            out.append(self.records[self.order[self.index]])
            self.index += 1
        return sorted(out, key=lambda r: len(r.prompt) + len(r.answer))

    def state(self) -> dict:
        return dict(epoch=self.epoch, index=self.index)

    def restore(self, state: dict) -> None:
        """Go on where state() was taken; more records than then are taken up from the next epoch on."""
        self.epoch, self.index = state["epoch"], state["index"]
        self.order = self._shuffle(self.epoch)
