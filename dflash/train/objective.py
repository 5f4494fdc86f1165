"""What a DFlash drafter is trained and judged on: random anchors, weighted block rows, and the acceptance length on
recorded greedy answers. Source: dflash.md 4.2, 4.3."""
from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from .batch import Batch, copy_sources
from .draft import DFlash
from .export import body
from .losses import SoftCrossEntropy, Vocabulary, decay, dpace, teacher
from .target import Target


PROMPT_HEAD = 32  # tokens: the system turn and the start of the user's, the same in most prompts


@dataclass
class Options:
    """Knobs of the loss. widths: block widths drawn per batch; rows: block rows a record gets (anchors = rows / width);
    prompt: share of them that may lie in the prompt; copy: weight of the lesson where to look for what the text repeats."""

    widths: tuple[int, ...] = (16,)
    rows: int = 768
    gamma: float = 7.0
    dpace: float = 0.0
    hard: float = 0.5
    temp: float = 1.0
    prompt: float = 0.0
    copy: float = 0.0


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


@dataclass
class Round:
    """One round of chain drafting: the drafts, the drafter's probability of each, how many were right."""

    drafts: list[int]
    confidence: list[float]
    accepted: int
    gained: int


def walk(drafts: list[list[int]], confidence: list[list[float]], truth: list[int], first: int, n: int) -> list[Round]:
    """Rounds along truth[:n] from the root at `first`; drafts[i] continue the root at first + i. A greedy target accepts
    a draft exactly where it agrees with the record, so nothing has to be run. The last round ends with the text."""
    out, pos = [], first
    while pos < n - 1:
        row, m = drafts[pos - first], 0
        while m < len(row) and pos + m + 1 < n and row[m] == truth[pos + m + 1]:
            m += 1
        out.append(Round(row, confidence[pos - first], m, min(m + 1, n - 1 - pos)))
        pos += out[-1].gained
    return out


def copying(b: Batch, seen: torch.Tensor, anchor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Where the text repeats itself: mean -log of what row 0 attends to, with its first group's first head to the token that
    came next the time before, with the second group's to the one after that, and so on. seen [N, G, A, S], anchor [N, A].
    Without it a drafter takes long to find that it can copy: its keys have to know which tokens came before."""
    source = copy_sources(b.ids.cpu()).to(b.ids.device).gather(1, (anchor + 1).clamp(max=b.ids.shape[1] - 1))
    missed = []
    for g in range(seen.shape[1]):
        at = source + g
        ok = real & (source > 0) & (at < anchor)
        row = seen[:, g].gather(-1, at.clamp(max=seen.shape[-1] - 1)[..., None])[..., 0]
        missed.append(-row[ok].clamp(min=1e-6).log())
    found = torch.cat(missed)
    return found.mean() if len(found) else found.sum()


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
        """anchor [N, A] and whether it is one [N, A]: answer positions that have a next token, drawn without repeats, and
        some of the prompt behind what all prompts begin with."""
        n = len(b.ids)
        anchor, real = torch.zeros(n, count, dtype=torch.long), torch.zeros(n, count, dtype=torch.bool)
        for i in range(n):
            first, last = int(b.start[i]), int(b.length[i]) - 1
            drawn = torch.randperm(last - first, generator=self.noise) + first
            if self.options.prompt and first > PROMPT_HEAD:
                asked = torch.randperm(first - PROMPT_HEAD, generator=self.noise) + PROMPT_HEAD
                drawn = torch.cat([asked[:int(count * self.options.prompt)], drawn])
            drawn = drawn[:count].sort()[0]
            anchor[i, :len(drawn)], anchor[i, len(drawn):] = drawn, first
            real[i, :len(drawn)] = True
        used = int(real.sum(1).max())
        return anchor[:, :used].to(b.ids.device), real[:, :used].to(b.ids.device)

    def loss(self, b: Batch) -> tuple[torch.Tensor, Stats]:
        """Mean weighted cross-entropy over the rows of random blocks. A row counts while all tokens between its anchor and
        it are the target's first choice: behind others, a greedy round is over."""
        o, device = self.options, b.ids.device
        width = self.rng.choice(o.widths)
        anchor, real = self.anchors(b, max(1, o.rows // width))
        ids, bias = (t.to(device) for t in self.vocabulary.draw(self.noise, b.ids.cpu().unique()))
        w = self.head[ids]
        labels = teacher(b.final.reshape(-1, b.final.shape[-1]), w, bias, o.hard, o.temp)
        k = torch.arange(width, device=device)
        pos = anchor[:, :, None] + k
        valid = real[:, :, None] & (pos < b.length.to(device)[:, None, None]) & (k > 0)
        before = (pos - 1).clamp(max=b.final.shape[1] - 1) + torch.arange(len(b.ids), device=device)[:, None, None] * b.final.shape[1]
        token = b.ids.gather(1, pos.clamp(max=b.ids.shape[1] - 1).flatten(1)).view_as(pos)
        chosen = (ids[labels.argmax(-1)][before] == token) | (k == 0)
        valid[..., 1:] &= chosen[..., :-1].cumprod(-1).bool()
        context = self.module.context(b.taps)
        seen: list[torch.Tensor] | None = [] if o.copy else None
        rows = self.module(self.module.block_input(self.embed, b.ids.gather(1, anchor), width), anchor, context, seen)
        x, source = rows[valid].to(self.head.dtype), before[valid]
        weight = self._weights(valid, x, w, bias, labels, source)
        total = weight.sum()
        loss, ce, hit = SoftCrossEntropy.apply(x, w, bias, labels, source, weight / total)
        stats = self._stats(float(loss.detach() * total), float(total), hit, k.expand_as(valid)[valid])
        if seen:
            loss = loss + o.copy * copying(b, seen[0], anchor, real)
        return loss, stats

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
    def rounds(self, b: Batch, width: int | None = None, ids: torch.Tensor | None = None, taps: torch.Tensor | None = None) -> list[Round]:
        """Chain drafting along one recorded greedy answer. `ids` restricts the drafter's head; `taps` replaces the
        features."""
        n, first = int(b.length[0]), int(b.start[0])
        context = self.module.context(b.taps if taps is None else taps)
        head = self.head if ids is None else self.head[ids]
        drafts, confidence = [], []
        for part in torch.arange(first, n - 1, device=b.ids.device).split(48):
            x = self.module.block_input(self.embed, b.ids[:, part], width or self.module.block_size)
            rows = self.module(x, part[None], context)[0, :, 1:].to(self.head.dtype)
            top = torch.softmax(rows @ head.t(), -1).max(-1)
            drafts += (top.indices if ids is None else ids[top.indices]).tolist()
            confidence += top.values.tolist()
        return walk(drafts, confidence, b.ids[0].tolist(), first, n)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return body(self.module)

    @torch.no_grad()
    def logits(self, b: Batch, root: int) -> torch.Tensor:
        """Logits [B-1, V] of the block whose root is at position `root` of a batch of one record."""
        x = self.module.block_input(self.embed, b.ids[:, root:root + 1], self.module.block_size)
        rows = self.module(x, torch.tensor([[root]], device=b.ids.device), self.module.context(b.taps[:, :root]))
        return rows[0, 0, 1:] @ self.head.t()
