"""The training loss on a reduced vocabulary, computed with its gradient in one pass.

Owns: which ids take part in the softmax, the mix of teacher and argmax labels, weights over block positions.
Sources: static decay and D-PACE weights, dflash.md 4.3; distillation from the target's row that predicts the position."""
from __future__ import annotations

import math
from collections import Counter
from typing import Iterable

import torch

CHUNK = 256  # rows of logits at once: bounds the memory of a pass


class Vocabulary:
    """The ids that the softmax of training runs over: the most frequent ones, fixed, and a few others drawn anew for
    every batch, so that the rest of the head's rows do not drift. `bias` corrects the drawn ones for how few they are."""

    def __init__(self, counts: Counter, total: int, size: int, extra: int):
        order = [i for i, _ in counts.most_common(size)]
        known = set(order)
        order += [i for i in range(total) if i not in known][:max(0, size - len(order))]
        self.ids = torch.tensor(sorted(order))
        self.coverage = sum(counts[i] for i in order) / max(1, sum(counts.values()))
        rest = torch.ones(total, dtype=torch.bool)
        rest[self.ids] = False
        self.rest, self.extra = rest.nonzero()[:, 0], min(extra, int(rest.sum()))

    def draw(self, generator: torch.Generator, present: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [C] of a batch and the bias [C] on their logits. The ids in `present`, those of the batch's texts, always
        take part, so that a small fixed part costs no labels."""
        rest, ids = self.rest, self.ids
        if present is not None:
            own = torch.isin(rest, present)
            ids, rest = torch.cat([ids, rest[own]]), rest[~own]
        extra = min(self.extra, len(rest))
        if not extra:
            return ids, torch.zeros(len(ids))
        drawn = rest[torch.randperm(len(rest), generator=generator)[:extra]]
        bias = torch.zeros(len(ids) + extra)
        bias[len(ids):] = math.log(len(rest) / extra)
        return torch.cat([ids, drawn]), bias


def count_tokens(answers: Iterable[list[int]]) -> Counter:
    """How often each id occurs in the answers."""
    counts: Counter = Counter()
    for a in answers:
        counts.update(a)
    return counts


def decay(width: int, gamma: float) -> torch.Tensor:
    """Weights [width] of block rows: 0 for the root, exp(-(k-1)/gamma) for row k."""
    w = torch.exp(-(torch.arange(width).float() - 1) / gamma)
    w[0] = 0
    return w


def dpace(confidence: torch.Tensor, valid: torch.Tensor, alpha: float) -> torch.Tensor:
    """Weights [..., B-1] from the drafter's own probability of the right token, confidence [..., B-1]: row k counts as
    often as the blocks that it takes part in reach it, w_k = sum over m >= k of prod over i <= m of (1-a) q_i + a."""
    reach = ((1 - alpha) * confidence + alpha).cumprod(-1) * valid
    return reach.flip(-1).cumsum(-1).flip(-1)


def teacher(final: torch.Tensor, head: torch.Tensor, bias: torch.Tensor, hard: float, temp: float) -> torch.Tensor:
    """final [n, H] of the target and the head's rows [C, H] of the batch's ids -> labels [n, C]: (1-hard) of its softmax at
    `temp`, `hard` on its argmax. Only the ids of the batch take part."""
    z = final @ head.t() + bias
    best = z.argmax(-1, keepdim=True)
    p = torch.softmax(z / temp, -1).mul_(1 - hard)
    return p.scatter_add_(-1, best, torch.full_like(best, hard, dtype=p.dtype))


class SoftCrossEntropy(torch.autograd.Function):
    """sum over rows of weight * CE(labels, softmax(x W^T + bias)); labels are constants, W too unless it wants a
    gradient. Logits are made and consumed in chunks; their gradient is folded into those of x and W at once, so nothing
    of size [n, C] is kept."""

    @staticmethod
    def forward(ctx, x, w, bias, labels, row, weight):
        """x [n, H], w [C, H], labels [m, C], row [n] into labels, weight [n]. Returns (loss, CE [n], hit [n])."""
        grad, loss, hit = torch.empty_like(x), torch.empty(len(x), device=x.device), torch.empty(len(x), device=x.device)
        grad_w = torch.zeros_like(w) if ctx.needs_input_grad[1] else None
        for i in range(0, len(x), CHUNK):
            part = slice(i, i + CHUNK)
            z = torch.addmm(bias.to(x.dtype), x[part], w.t()).float()
            y = labels[row[part]]
            hit[part] = (z.argmax(-1) == y.argmax(-1)).float()
            lse = torch.logsumexp(z, -1)
            loss[part] = lse - (y * z).sum(-1)
            z.sub_(lse[:, None]).exp_().sub_(y).mul_(weight[part, None])
            z = z.to(x.dtype)
            grad[part] = z @ w
            if grad_w is not None:
                grad_w.addmm_(z.t(), x[part])
        ctx.save_for_backward(grad, grad_w)
        ctx.mark_non_differentiable(loss, hit)
        return (loss * weight).sum(), loss, hit

    @staticmethod
    def backward(ctx, g, _loss, _hit):
        grad, grad_w = ctx.saved_tensors
        return grad * g, None if grad_w is None else grad_w * g, None, None, None, None
