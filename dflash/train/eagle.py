"""The EAGLE-3 head in torch, its training-time test, and its acceptance length.

Owns: the one-layer network (eagle3.md 2.1), the unrolling over draft steps (5.1), its objective. Module names are the
published tensor names, SafeAILab's layout. Feature layers are named by their outputs (ids l, boundary l + 1)."""
from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from .batch import Batch, copy_sources
from .draft import Mlp, Norm, check_target, read_config, read_weights
from .errors import TrainError
from .export import body
from .losses import SoftCrossEntropy, teacher
from .objective import Round, Stats, walk
from .target import Target, rope_table, rotate


class WideAttention(nn.Module):
    """Projections from [embedding ; hidden], twice as wide as the stream."""

    def __init__(self, c: dict):
        super().__init__()
        h, hd = c["hidden_size"], c["head_dim"]
        self.q_proj = nn.Linear(2 * h, c["num_attention_heads"] * hd, bias=False)
        self.k_proj = nn.Linear(2 * h, c["num_key_value_heads"] * hd, bias=False)
        self.v_proj = nn.Linear(2 * h, c["num_key_value_heads"] * hd, bias=False)
        self.o_proj = nn.Linear(c["num_attention_heads"] * hd, h, bias=False)


class MidLayer(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        self.self_attn, self.mlp = WideAttention(c), Mlp(h, c["intermediate_size"])
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = Norm(h, eps), Norm(h, eps), Norm(h, eps)


class Eagle3(nn.Module):
    """ids [Vd] ascending: the draft vocabulary."""

    def __init__(self, config: dict, ids: torch.Tensor, max_pos: int = 4096):
        super().__init__()
        self.config = c = config
        h = c["hidden_size"]
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.taps = tuple(c["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
        self.fc = nn.Linear(len(self.taps) * h, h, bias=False)
        self.midlayer, self.norm = MidLayer(c), Norm(h, c["rms_norm_eps"])
        self.lm_head = nn.Linear(h, c["draft_vocab_size"], bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)
        cos, sin = rope_table(max_pos, self.head_dim, c["rope_theta"])
        for name, value in (("cos", cos), ("sin", sin), ("ids", ids)):
            self.register_buffer(name, value, persistent=False)

    def qkv(self, embed: torch.Tensor, g: torch.Tensor, pos: torch.Tensor):
        """embed, g [N, R, H] at rope positions pos [R] -> q [N, G, r, R, hd] (scaled), k, v [N, G, R, hd]."""
        m, a = self.midlayer, self.midlayer.self_attn
        n, rows, _ = g.shape
        x = torch.cat([m.input_layernorm(embed), m.hidden_norm(g)], -1)
        cos, sin = self.cos[pos][:, None], self.sin[pos][:, None]
        q = rotate(a.q_proj(x).view(n, rows, self.heads, self.head_dim), cos, sin) * self.head_dim ** -0.5
        k = rotate(a.k_proj(x).view(n, rows, self.kv_heads, self.head_dim), cos, sin).transpose(1, 2)
        v = a.v_proj(x).view(n, rows, self.kv_heads, self.head_dim).transpose(1, 2)
        q = q.view(n, rows, self.kv_heads, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        return q, k, v

    def step(self, g: torch.Tensor, q, near, far, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft step of R rows. near: list of (k, v) [N, G, R, hd], row i sees entry i of each; far (k, v) [N, G, S, hd]
        of the context, mask [R, S] additive. Returns the layer's output y [N, R, H], before the final norm, and how much
        the first head attends to what [N, R, S + len(near)]."""
        m = self.midlayer
        n, gk, r, rows, hd = q.shape
        score = [q.reshape(n, gk, r * rows, hd) @ far[0].transpose(-1, -2)]
        score[0] = score[0].view(n, gk, r, rows, -1) + mask
        score += [(q * k[:, :, None]).sum(-1, keepdim=True) for k, _ in near]
        p = torch.softmax(torch.cat(score, -1), -1)
        s = mask.shape[-1]
        o = (p[..., :s].reshape(n, gk, r * rows, s) @ far[1]).view(n, gk, r, rows, hd)
        for i, (_, v) in enumerate(near):
            o = o + p[..., s + i:s + i + 1] * v[:, :, None]
        x = g + m.self_attn.o_proj(o.permute(0, 3, 1, 2, 4).reshape(n, rows, -1))
        return x + m.mlp(m.post_attention_layernorm(x)), p[:, 0, 0]

    def unroll(self, taps: torch.Tensor, embed: torch.Tensor, ids: torch.Tensor, first: int, states: int, feed: bool = False,
               seen: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Draft steps of rows first..S-1 of taps [N, S, T*H]; ids [N, S+1]. Row p has feature p and token p + 1 at step 0;
        step s takes token p + 1 + s (the text's, or with `feed` the head's own draft) and the output of the step before.
        Returns per step the normed rows [N, S-first, H]; `seen` gets what the first head attends to, see step()."""
        n, s = taps.shape[:2]
        g = self.fc(taps)
        pos = torch.arange(s, device=taps.device)
        q, k, v = self.qkv(embed[ids[:, 1:s + 1]], g, pos)
        mask = torch.full((s, s), float("-inf"), device=taps.device).triu(1)[first:]
        near: list = []
        seen = [] if seen is None else seen
        y, attention = self.step(g[:, first:], q[:, :, :, first:], near, (k, v), mask)
        seen.append(attention)
        out = [self.norm(y)]
        padded = F.pad(ids, (0, states))
        for t in range(1, states):
            token = self.ids[self.lm_head(out[-1]).argmax(-1)] if feed else padded[:, first + 1 + t:s + 1 + t]
            q, kt, vt = self.qkv(embed[token], y, pos[first:] + t)
            near.append((kt, vt))
            y, attention = self.step(y, q, near, (k, v), mask)
            seen.append(attention)
            out.append(self.norm(y))
        return out


def new_eagle_config(target: Target, taps: tuple[int, ...], inter: int, draft_vocab: int) -> dict:
    """config.json of a head in SafeAILab's layout; ids of `taps` count layer outputs."""
    c = target.config
    target.check_taps(taps)
    return dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", hidden_size=c.hidden, intermediate_size=inter,
                num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim, num_hidden_layers=1, rms_norm_eps=1e-5,
                rope_theta=c.theta, attention_bias=False, vocab_size=c.vocab, draft_vocab_size=draft_vocab, hidden_act="silu",
                max_position_embeddings=c.context, num_target_layers=c.layers, tie_word_embeddings=False, torch_dtype="bfloat16",
                eagle_config=dict(eagle_aux_hidden_state_layer_ids=list(taps), use_aux_hidden_state=True))


@torch.no_grad()
def warm_start_eagle(head: Eagle3, target: Target) -> None:
    """fc passes the last tap on; the layer is the target's that follows it, its projections on the hidden half; where the
    head's MLP is narrower it takes the neurons with the largest weights; lm_head are the target's rows."""
    c = target.config
    w = target.layer[min(head.taps[-1] + 1, c.layers - 1)]
    m, a, h = head.midlayer, head.midlayer.self_attn, c.hidden
    head.fc.weight.normal_(0, 0.002)
    head.fc.weight[:, -h:] += torch.eye(h)
    q, k, v = w.qkv.split([c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim])
    for linear, value in ((a.q_proj, q), (a.k_proj, k), (a.v_proj, v)):
        linear.weight.normal_(0, 0.01)
        linear.weight[:, h:] += value
    a.o_proj.weight.copy_(w.out)
    gate, up = w.gate_up.chunk(2)
    n = m.mlp.gate_proj.weight.shape[0]
    best = (gate.norm(dim=1) * up.norm(dim=1) * w.down.norm(dim=0)).topk(min(n, c.inter)).indices
    m.mlp.gate_proj.weight[:len(best)], m.mlp.up_proj.weight[:len(best)] = gate[best], up[best]
    m.mlp.down_proj.weight[:, :len(best)] = w.down[:, best]
    m.hidden_norm.weight.copy_(w.norm1)
    m.input_layernorm.weight.fill_(1.0)
    m.post_attention_layernorm.weight.copy_(w.norm2)
    head.norm.weight.copy_(target.norm)
    head.lm_head.weight.copy_(target.head[head.ids])


class EagleObjective:
    """Loss over `states` draft steps and the acceptance length of a chain of as many drafts."""

    def __init__(self, head: Eagle3, target: Target, states: int, decay: float, hard: float, temp: float, copy: float = 0.0):
        self.module, self.states, self.decay, self.hard, self.temp, self.copy = head, states, decay, hard, temp, copy
        self.embed, self.head, self.norm_bias = target.embed, target.head, torch.zeros(len(head.ids), device=target.embed.device)
        self.member = torch.zeros(target.config.vocab, dtype=torch.bool, device=target.embed.device)
        self.member[head.ids] = True

    def seed(self, value: int) -> None:
        """Nothing here is drawn."""

    def loss(self, b: Batch) -> tuple[torch.Tensor, Stats]:
        """Sum over steps of decay^s times the mean cross-entropy of the rows whose text goes on with a token of the draft
        vocabulary (whether the target's first choice is in it would cost a product with its whole head)."""
        device, s = b.ids.device, b.taps.shape[1]
        first = int(b.start.min()) - 1
        seen: list[torch.Tensor] = []
        rows = self.module.unroll(b.taps, self.embed, b.ids, first, self.states, seen=seen)
        flat = b.final.reshape(-1, b.final.shape[-1])
        labels = teacher(flat, self.head[self.module.ids], self.norm_bias, self.hard, self.temp)
        inside = self.member[b.ids[:, 1:s + 1]]
        p = torch.arange(first, s, device=device)
        total, stats = 0.0, Stats()
        start, length = b.start.to(device)[:, None], b.length.to(device)[:, None]
        for t, y in enumerate(rows):
            row = p + 1 + t
            ok = (row < s) & (p + 1 >= start) & (row + 1 < length)
            ok = ok & inside[:, row.clamp(max=s - 1)]
            if not bool(ok.any()):
                break
            source = (row.clamp(max=s - 1) + torch.arange(len(b.ids), device=device)[:, None] * s)[ok]
            x = y[ok]
            weight = torch.full((len(x),), 1 / len(x), device=device)
            part, ce, hit = SoftCrossEntropy.apply(x, self.module.lm_head.weight, self.norm_bias, labels, source, weight)
            total = total + self.decay ** t * part
            stats.loss, stats.weight = stats.loss + self.decay ** t * float(part.detach()), stats.weight + self.decay ** t
            stats.hits[t + 1] += float(hit.sum())
            stats.rows[t + 1] += len(hit)
        if self.copy:
            total = total + self.copy * self.copying(b, seen, first)
        return total, stats

    @staticmethod
    def copying(b: Batch, seen: list[torch.Tensor], first: int) -> torch.Tensor:
        """Mean -log of what the first head attends to the row whose token comes next, where the text repeats itself: without
        it a head takes long to find that it can copy."""
        s, missed = b.taps.shape[1], []
        p = torch.arange(first, s)
        source = F.pad(copy_sources(b.ids.cpu()), (0, len(seen) + 1))
        length = b.length[:, None]
        for t, attention in enumerate(seen):
            at = source[:, p + 2 + t] - 1  # row i holds token i + 1
            ok = (at >= 0) & (at <= p) & (p + 2 + t < length)
            row = attention.gather(-1, at.clamp(min=0)[..., None].to(attention.device))[..., 0]
            missed.append(-row[ok.to(row.device)].clamp(min=1e-6).log())
        missed = torch.cat(missed)
        return missed.mean() if len(missed) else missed.sum()

    @torch.no_grad()
    def rounds(self, b: Batch, width: int | None = None, ids: torch.Tensor | None = None, taps: torch.Tensor | None = None) -> list[Round]:
        """Chains of width - 1 (default `states`) drafts along one recorded greedy answer; the root at position p is the
        token of row p - 1. `taps` replaces the features."""
        first, depth = int(b.start[0]), width - 1 if width else self.states
        rows = self.module.unroll(b.taps if taps is None else taps, self.embed, b.ids, first - 1, depth, feed=True)
        top = [torch.softmax(self.module.lm_head(y[0]), -1).max(-1) for y in rows]
        drafts = torch.stack([self.module.ids[t.indices] for t in top], -1).tolist()
        return walk(drafts, torch.stack([t.values for t in top], -1).tolist(), b.ids[0].tolist(), first, int(b.length[0]))

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds."""
        return {**body(self.module), **maps(self.module.ids, len(self.member))}

    @torch.no_grad()
    def logits(self, b: Batch, root: int) -> torch.Tensor:
        """Logits [states, Vd] of the chain drafted from the root at position `root` of a batch of one record."""
        rows = self.module.unroll(b.taps[:, :root], self.embed, b.ids[:, :root + 1], root - 1, self.states, feed=True)
        return torch.cat([self.module.lm_head(y[0]) for y in rows])


def maps(ids: torch.Tensor, vocab: int) -> dict[str, torch.Tensor]:
    """d2t [Vd] int64 offsets and t2d [V] bool of a draft vocabulary."""
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[ids] = True
    return {"d2t": ids.to(torch.int64).cpu() - torch.arange(len(ids)), "t2d": t2d}


def load_eagle(path: str, target: Target) -> Eagle3:
    """A checkpoint folder as `export` writes it, for this target."""
    from safetensors import safe_open

    config = read_config(path)
    if "draft_vocab_size" not in config or "eagle_config" not in config:
        raise TrainError(f"{path}/config.json: no draft_vocab_size or eagle_config, not an EAGLE-3 head of this pipeline")
    check_target(config, target, path)
    try:
        with safe_open(f"{path}/model.safetensors", "pt") as f:
            d2t = f.get_tensor("d2t")
    except Exception as e:
        raise TrainError(f"{path}/model.safetensors: {e}") from e
    head = Eagle3(config, d2t + torch.arange(len(d2t)))
    read_weights(head, path)
    return head
