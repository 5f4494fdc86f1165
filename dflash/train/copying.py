"""Teaches a new drafter to copy, which by itself it takes long to find.

Where the text repeats itself, what came next the time before is at hand in the context. A head of attention that finds the
place and hands on the token there is a copier. Its queries and keys are trained alone, on where to look, which needs no
logits and no draft steps; values and outputs are set: the leading directions of the embedding, in and out again. (Induction
heads: Olsson et al., arXiv 2209.11895.)

EAGLE-3: the row that holds the token now drafted from has which token was there in its feature, and which came next in its
embedding. DFlash: the context holds features alone, row 0 of a block looks with its first head of the first group to the
token that came next, of the second group to the one behind, and so on; which token a feature is of is fitted by least squares."""
from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

from .batch import Batch, Loader, copy_sources
from .data import Record
from .draft import DFlash
from .eagle import Eagle3
from .target import rotate

SHARE_EAGLE, SHARE_DFLASH = 0.12, 0.3  # of the stream's size that the copied embedding has at first
FITTED = 400  # records that DFlash's values are fitted on


@dataclass
class Looks:
    """What heads compare in one text: queries and keys [S, .], a row seeing those before it and, if `own`, itself. where[g]
    = (rows, the row each should look at) for the first head of group g."""

    queries: torch.Tensor
    keys: torch.Tensor
    own: bool
    where: list[tuple[torch.Tensor, torch.Tensor]]


def where_to_look(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """EAGLE-3: ids [1, S+1] -> rows and where. Row p drafts token p + 2, row i holds token i + 1."""
    s = ids.shape[1] - 1
    source = F.pad(copy_sources(ids, 2)[0], (0, 1))[2:] - 1
    rows = (source >= 0).nonzero()[:, 0]
    rows = rows[rows + 2 <= s]
    return rows, source[rows]


def eagle_looks(head: Eagle3, embed: torch.Tensor, b: Batch) -> Looks:
    m, s = head.midlayer, b.taps.shape[1]
    x = torch.cat([m.input_layernorm(embed[b.ids[0, 1:s + 1]]), m.hidden_norm(head.fc(b.taps[0]))], -1)
    return Looks(x, x, True, [where_to_look(b.ids.cpu())])


def dflash_looks(draft: DFlash, embed: torch.Tensor, b: Batch) -> Looks:
    s = b.taps.shape[1]
    source = copy_sources(b.ids.cpu(), 2)[0]
    rows = torch.arange(1, s - 1)
    where = []
    for g in range(draft.kv_heads):
        at = source[rows + 1] + g
        ok = (source[rows + 1] > 0) & (at < rows)
        where.append((rows[ok], at[ok]))
    return Looks(draft.layers[0].input_layernorm(embed[b.ids[0, :s]]), draft.hidden_norm(draft.fc(b.taps[0])), False, where)


def missed(drafter: Eagle3 | DFlash, q: torch.Tensor, k: torch.Tensor, look: Looks, g: int) -> torch.Tensor:
    """-log of what the first head of group g, with weights q, k [hd, .], attends to the rows it should look at."""
    a, (s, hd) = attention_of(drafter), (len(look.keys), drafter.head_dim)
    cos, sin = drafter.cos[:s], drafter.sin[:s]
    normed = (a.q_norm(look.queries @ q.t()), a.k_norm(look.keys @ k.t())) if hasattr(a, "q_norm") else (look.queries @ q.t(), look.keys @ k.t())
    score = rotate(normed[0], cos, sin) @ rotate(normed[1], cos, sin).t() * hd ** -0.5
    score = score + torch.full((s, s), float("-inf"), device=score.device).triu(1 if look.own else 0)
    rows, at = (t.to(score.device) for t in look.where[g])
    return -torch.log_softmax(score[rows], -1).gather(1, at[:, None])[:, 0]


def attention_of(drafter: Eagle3 | DFlash) -> nn.Module:
    return drafter.midlayer.self_attn if isinstance(drafter, Eagle3) else drafter.layers[0].self_attn


def lookers(drafter: Eagle3 | DFlash) -> list[tuple[slice, slice]]:
    """Rows of q_proj and k_proj of the heads that copy."""
    hd, each = drafter.head_dim, drafter.heads // drafter.kv_heads
    groups = 1 if isinstance(drafter, Eagle3) else drafter.kv_heads
    return [(slice(g * each * hd, (g * each + 1) * hd), slice(g * hd, (g + 1) * hd)) for g in range(groups)]


def teach_where(drafter: Eagle3 | DFlash, look: Callable[[Batch], Looks], loader: Loader, records: list[Record], minutes: float,
                lr: float = 3e-3, steps: int = 1 << 30) -> None:
    """Trains the queries of the heads that copy and the keys of their groups on records in any order, for so long or so many
    steps; nothing else changes."""
    a, rng, heads = attention_of(drafter), random.Random(1), lookers(drafter)
    q, k = ([nn.Parameter(m.weight[h[i]].detach().clone()) for h in heads] for i, m in enumerate((a.q_proj, a.k_proj)))
    optimizer = torch.optim.AdamW(q + k, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    start, step, sums = time.monotonic(), 0, [0.0] * len(heads)
    while step < steps and (spent := time.monotonic() - start) < 60 * minutes:
        optimizer.zero_grad()
        for r in rng.sample(records, min(8, len(records))):
            with torch.no_grad():
                seen = look(loader.batch([r]))
            lost = [missed(drafter, q[g], k[g], seen, g) for g in range(len(heads))]
            if all(len(x) for x in lost):
                (sum(x.mean() for x in lost) / 8).backward()
                sums = [s + float(x.detach().mean()) / 8 for s, x in zip(sums, lost)]
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 3.15 - 3 * spent / (60 * minutes))
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"where to look: step {step} loss {' '.join(f'{s / 50:.3f}' for s in sums)} left {minutes - spent / 60:.1f} min", file=sys.stderr, flush=True)
            sums = [0.0] * len(heads)
    with torch.no_grad():
        for g, (rows_q, rows_k) in enumerate(heads):
            a.q_proj.weight[rows_q], a.k_proj.weight[rows_k] = q[g], k[g]


def leading(embed: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of one size and without their mean [V, H], and the n directions in which they differ most [n, H]."""
    e = F.normalize(embed.float(), dim=-1) * embed.shape[1] ** 0.5
    mean = F.normalize(e.mean(0), dim=0)
    e = e - (e @ mean)[:, None] * mean
    return e, torch.linalg.eigh(e.t() @ e)[1][:, -n:].t()


def hand_on(a: nn.Module, value: torch.Tensor, lead: torch.Tensor, gain: float, group: int) -> None:
    """The first head says `value` [hd, .] of the row it looks at, along `lead` [hd, H]; the others of its `group` columns say
    nothing at first."""
    hd = len(lead)
    a.v_proj.weight[:hd] = gain ** 0.5 * value
    a.o_proj.weight[:, :group] = 0
    a.o_proj.weight[:, :hd] = gain ** 0.5 * lead.t()


@torch.no_grad()
def set_eagle(head: Eagle3, embed: torch.Tensor, b: Batch) -> None:
    """The first head hands on the embedding that the row it looks at holds."""
    hd, h = head.head_dim, embed.shape[1]
    _, lead = leading(embed[head.ids], hd)
    gain = SHARE_EAGLE * float(head.fc(b.taps).pow(2).mean().sqrt())
    hand_on(head.midlayer.self_attn, F.pad(lead, (0, h)), lead, gain, head.heads // head.kv_heads * hd)


@torch.no_grad()
def set_dflash(draft: DFlash, embed: torch.Tensor, loader: Loader, records: list[Record]) -> None:
    """The first head hands on the embedding of the token that the feature it looks at is of, as far as a linear map of the
    feature tells."""
    hd, h = draft.head_dim, embed.shape[1]
    e, lead = leading(embed, hd)
    cc, ce = torch.zeros(h, h, dtype=torch.float64), torch.zeros(h, hd, dtype=torch.float64)
    for r in records[:FITTED]:
        b = loader.batch([r])
        c, told = draft.hidden_norm(draft.fc(b.taps[0])), e[b.ids[0, :b.taps.shape[1]]] @ lead.t()
        cc += (c.t() @ c).double().cpu()
        ce += (c.t() @ told).double().cpu()
    value = torch.linalg.solve(cc + 1e-3 * cc.diagonal().mean() * torch.eye(h, dtype=torch.float64), ce).float().to(embed.device)
    ids = b.ids[0]
    size, said = (float(x.float().pow(2).mean().sqrt()) for x in (embed[ids], e[ids] @ lead.t() @ lead))
    hand_on(draft.layers[0].self_attn, value.t(), lead, SHARE_DFLASH * size / said, draft.heads // draft.kv_heads * hd)


def copy_start(drafter: Eagle3 | DFlash, embed: torch.Tensor, loader: Loader, records: list[Record], minutes: float) -> None:
    """Both. Records with stored features are preferred, as they cost least."""
    records = [r for r in records if r.row is not None] or records
    look = eagle_looks if isinstance(drafter, Eagle3) else dflash_looks
    teach_where(drafter, lambda b: look(drafter, embed, b), loader, records, minutes)
    if isinstance(drafter, Eagle3):
        set_eagle(drafter, embed, loader.batch(records[:1]))
    else:
        set_dflash(drafter, embed, loader, records)
