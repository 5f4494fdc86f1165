"""What a DFlash drafter is trained and judged on: random anchors, weighted block rows, and the acceptance length on
recorded greedy answers. Source: dflash.md 4.2, 4.3."""
from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from .batch import Batch
from .draft import DFlash
from .losses import SoftCrossEntropy, Vocabulary, decay, dpace, teacher
from .target import Target


@dataclass
class Options:
    """Knobs of the loss. widths: block widths drawn per batch; rows: block rows a record gets (anchors = rows / width)."""

    widths: tuple[int, ...] = (16,)
    rows: int = 768
    gamma: float = 7.0
    dpace: float = 0.0
    hard: float = 0.5
    temp: float = 1.0


@dataclass
class Stats:
    """Sums over a window: loss, weight, and per block row the hits and the count."""

    loss: float = 0.0
    weight: float = 0.0
    hits: torch.Tensor = field(default_factory=lambda: torch.zeros(64))
    rows: torch.Tensor = field(default_factory=lambda: torch.zeros(64))

    def add(self, other: "Stats") -> None:
        self.loss, self.weight = self.loss + other.loss, self.weight + other.weight
        self.hits, self.rows = self.hits + other.hits, self.rows + other.rows

    def accuracy(self, n: int) -> list[float]:
        """Share of right tokens at rows 1..n."""
        return (self.hits / self.rows.clamp(min=1))[1:n + 1].tolist()


class DFlashObjective:
    """Loss and metric of one drafter. The target's embedding and head are constants."""

    def __init__(self, draft: DFlash, target: Target, vocabulary: Vocabulary, options: Options, dtype: torch.dtype):
        self.module, self.vocabulary, self.options = draft, vocabulary, options
        self.embed, self.head = target.embed.to(dtype), target.head.to(dtype)
        self.rng = random.Random(0)
        self.noise = torch.Generator()

    def seed(self, value: int) -> None:
        """Restarts the draws; called with (seed, step, rank) so that a resumed run draws the same."""
        self.rng.seed(value)
        self.noise.manual_seed(value)

    def anchors(self, b: Batch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """anchor [N, A] and whether it is one [N, A]: answer positions that have a next token, drawn without repeats."""
        n = len(b.ids)
        anchor, real = torch.zeros(n, count, dtype=torch.long), torch.zeros(n, count, dtype=torch.bool)
        for i in range(n):
            first, last = int(b.start[i]), int(b.length[i]) - 1
            drawn = (torch.randperm(last - first, generator=self.noise)[:count] + first).sort()[0]
            anchor[i, :len(drawn)], anchor[i, len(drawn):] = drawn, first
            real[i, :len(drawn)] = True
        used = int(real.sum(1).max())
        return anchor[:, :used].to(b.ids.device), real[:, :used].to(b.ids.device)

    def loss(self, b: Batch) -> tuple[torch.Tensor, Stats]:
        """Mean weighted cross-entropy over the rows of random blocks."""
        o, device = self.options, b.ids.device
        width = self.rng.choice(o.widths)
        anchor, real = self.anchors(b, max(1, o.rows // width))
        context = self.module.context(b.taps)
        rows = self.module(self.module.block_input(self.embed, b.ids.gather(1, anchor), width), anchor, context)
        k = torch.arange(width, device=device)
        pos = anchor[:, :, None] + k
        valid = real[:, :, None] & (pos < b.length.to(device)[:, None, None]) & (k > 0)
        ids, bias = (t.to(device) for t in self.vocabulary.draw(self.noise))
        labels = teacher(b.final.reshape(-1, b.final.shape[-1]), self.head, ids, bias, o.hard, o.temp)
        source = (pos - 1 + torch.arange(len(b.ids), device=device)[:, None, None] * b.final.shape[1])[valid]
        x, w = rows[valid].to(self.head.dtype), self.head[ids]
        weight = self._weights(valid, x, w, bias, labels, source)
        total = weight.sum()
        loss, ce, hit = SoftCrossEntropy.apply(x, w, bias, labels, source, weight / total)
        return loss, self._stats(float(loss.detach() * total), float(total), hit, k.expand_as(valid)[valid])

    def _weights(self, valid, x, w, bias, labels, source) -> torch.Tensor:
        """Weight of every valid row [n]."""
        if not self.options.dpace:
            return decay(valid.shape[-1], self.options.gamma).to(valid.device).expand(valid.shape)[valid]
        with torch.no_grad():
            _, ce, _ = SoftCrossEntropy.apply(x.detach(), w, bias, labels, source, torch.ones(len(x), device=x.device))
            q = torch.zeros(valid.shape, device=x.device)
            q[valid] = torch.exp(-ce)
            out = torch.zeros(valid.shape, device=x.device)
            out[..., 1:] = dpace(q[..., 1:], valid[..., 1:], self.options.dpace)
        return out[valid]

    @staticmethod
    def _stats(loss: float, weight: float, hit: torch.Tensor, k: torch.Tensor) -> Stats:
        s = Stats(loss, weight)
        s.hits.index_add_(0, k.cpu(), hit.cpu())
        s.rows.index_add_(0, k.cpu(), torch.ones(len(k)))
        return s

    @torch.no_grad()
    def tau(self, b: Batch, width: int | None = None, ids: torch.Tensor | None = None, taps: torch.Tensor | None = None) -> tuple[int, int, torch.Tensor]:
        """Acceptance on one recorded greedy answer: (tokens gained, rounds, accepted count by position [width-1]).
        A chain draft is right as far as it agrees with the record. `ids` restricts the drafter's head; `taps` replaces
        the features."""
        width, n, first = width or self.module.block_size, int(b.length[0]), int(b.start[0])
        context = self.module.context(b.taps if taps is None else taps)
        drafts = self.drafts(b, torch.arange(first, n - 1), context, width, ids)
        truth, accepted = b.ids[0].tolist(), torch.zeros(width - 1)
        pos, tokens, rounds = first, 0, 0
        while pos < n - 1:
            row, m = drafts[pos - first], 0
            while m < width - 1 and pos + m + 1 < n and row[m] == truth[pos + m + 1]:
                m += 1
            accepted[:m] += 1
            gain = min(m + 1, n - 1 - pos)
            pos, tokens, rounds = pos + gain, tokens + gain, rounds + 1
        return tokens, rounds, accepted

    def drafts(self, b: Batch, anchor: torch.Tensor, context, width: int, ids: torch.Tensor | None) -> list[list[int]]:
        """Argmax drafts [A][width-1] of blocks at the anchors [A] of a batch of one record."""
        head = self.head if ids is None else self.head[ids]
        out: list[list[int]] = []
        for part in anchor.to(b.ids.device).split(48):
            x = self.module.block_input(self.embed, b.ids[:, part], width)
            rows = self.module(x, part[None], context)[0, :, 1:].to(self.head.dtype)
            best = (rows.reshape(-1, rows.shape[-1]) @ head.t()).argmax(-1)
            out += (best if ids is None else ids[best]).view(len(part), -1).tolist()
        return out
