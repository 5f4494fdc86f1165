"""Teaches a new EAGLE-3 head to copy, which by itself it takes long to find.

Where the text repeats itself, the row that holds the token now drafted from is at hand: its feature says which token was
there, its embedding which came next. One head of attention that compares the one and hands on the other is a copier. Its
queries and keys are trained alone, on where to look, which needs no logits and no draft steps; its values and outputs are
set: the leading directions of the embedding, in and out again. (Induction heads: Olsson et al., arXiv 2209.11895.)"""
from __future__ import annotations

import random
import sys
import time

import torch
import torch.nn.functional as F

from .batch import Batch, Loader, copy_sources
from .data import Record
from .eagle import Eagle3
from .target import rotate

SHARE = 0.12  # of the stream's size that the copied embedding has at first


def where_to_look(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [1, S+1] -> (rows, the row each should look at): row p drafts token p + 2, row i holds token i + 1."""
    s = ids.shape[1] - 1
    source = F.pad(copy_sources(ids, 2)[0], (0, 1))[2:] - 1
    rows = (source >= 0).nonzero()[:, 0]
    rows = rows[rows + 2 <= s]
    return rows, source[rows]


def missed(head: Eagle3, q: torch.Tensor, k: torch.Tensor, embed: torch.Tensor, b: Batch) -> torch.Tensor:
    """-log of what the first head, with weights q, k [hd, 2H], attends to the row it should look at."""
    m, s, hd = head.midlayer, b.taps.shape[1], head.head_dim
    with torch.no_grad():
        x = torch.cat([m.input_layernorm(embed[b.ids[0, 1:s + 1]]), m.hidden_norm(head.fc(b.taps[0]))], -1)
    cos, sin = head.cos[:s], head.sin[:s]
    score = rotate(x @ q.t(), cos, sin) @ rotate(x @ k.t(), cos, sin).t() * hd ** -0.5
    score = score + torch.full((s, s), float("-inf"), device=x.device).triu(1)
    rows, at = (t.to(x.device) for t in where_to_look(b.ids.cpu()))
    return -torch.log_softmax(score, -1)[rows, at]


def teach_where(head: Eagle3, embed: torch.Tensor, loader: Loader, records: list[Record], minutes: float, lr: float = 3e-3,
                steps: int = 1 << 30) -> None:
    """Trains the queries of the first head and the keys of its group on records in any order, for so long or so many steps;
    nothing else changes."""
    a, hd, rng = head.midlayer.self_attn, head.head_dim, random.Random(1)
    q, k = (torch.nn.Parameter(w.weight[:hd].detach().clone()) for w in (a.q_proj, a.k_proj))
    optimizer = torch.optim.AdamW([q, k], lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    start, step, sum_ = time.monotonic(), 0, 0.0
    while step < steps and (spent := time.monotonic() - start) < 60 * minutes:
        optimizer.zero_grad()
        for r in rng.sample(records, min(8, len(records))):
            lost = missed(head, q, k, embed, loader.batch([r]))
            if len(lost):
                (lost.mean() / 8).backward()
                sum_ += float(lost.detach().mean()) / 8
        for g in optimizer.param_groups:
            g["lr"] = lr * min(1.0, 3.15 - 3 * spent / (60 * minutes))
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"where to look: step {step} loss {sum_ / 50:.3f} left {minutes - spent / 60:.1f} min", file=sys.stderr, flush=True)
            sum_ = 0.0
    with torch.no_grad():
        a.q_proj.weight[:hd], a.k_proj.weight[:hd] = q, k


@torch.no_grad()
def set_copier(head: Eagle3, embed: torch.Tensor, b: Batch) -> None:
    """The first head hands on the embedding of the row it looks at; the other heads of its group say nothing at first."""
    a, hd, h = head.midlayer.self_attn, head.head_dim, embed.shape[1]
    e = F.normalize(embed[head.ids].float(), dim=-1) * h ** 0.5
    mean = F.normalize(e.mean(0), dim=0)
    e = e - (e @ mean)[:, None] * mean
    lead = torch.linalg.eigh(e.t() @ e)[1][:, -hd:].t()  # [hd, H]
    gain = (SHARE * float(head.fc(b.taps).pow(2).mean().sqrt())) ** 0.5
    a.v_proj.weight[:hd] = 0
    a.v_proj.weight[:hd, :h] = gain * lead
    a.o_proj.weight[:, :head.heads // head.kv_heads * hd] = 0
    a.o_proj.weight[:, :hd] = gain * lead.t()


def copy_start(head: Eagle3, embed: torch.Tensor, loader: Loader, records: list[Record], minutes: float) -> None:
    """Both. Records with stored features are preferred, as they cost least."""
    stored = [r for r in records if r.row is not None]
    teach_where(head, embed, loader, stored or records, minutes)
    set_copier(head, embed, loader.batch(records[:1]))
