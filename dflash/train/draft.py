"""The DFlash drafter in torch: a few Qwen3-style layers whose context keys and values come from the target's features.

Owns: the network, its config in the z-lab layout, warm start from target layers, reading a checkpoint.
Must not know: data, losses. Source of the maths: dflash.md 2.2 to 2.6; module names are the checkpoint's tensor names."""
from __future__ import annotations

import json
import os
from typing import Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F

from .errors import TrainError
from .target import Target, rms_norm, rope_table, rotate

LAYER_MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class Norm(nn.Module):
    """RMS norm with a weight over the last axis."""

    def __init__(self, n: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)
        return rms_norm(x, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int, eps: float):
        super().__init__()
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        self.q_norm, self.k_norm = Norm(head_dim, eps), Norm(head_dim, eps)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inter: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inter, bias=False)
        self.up_proj = nn.Linear(hidden, inter, bias=False)
        self.down_proj = nn.Linear(inter, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.self_attn = Attention(hidden, c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], eps)
        self.mlp = Mlp(hidden, c["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, eps), Norm(hidden, eps)


class DFlash(nn.Module):
    """config is the dict of config.json. The embedding and the output head are the target's and not part of it."""

    def __init__(self, config: dict, max_pos: int = 4096):
        super().__init__()
        self.config = c = config
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.taps, self.mask_id = tuple(c["dflash_config"]["target_layer_ids"]), c["dflash_config"]["mask_token_id"]
        self.block_size, self.causal = c["block_size"], bool(c.get("is_causal", False))
        self.fc = nn.Linear(len(self.taps) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = Norm(hidden, eps), Norm(hidden, eps)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c["num_hidden_layers"])])
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)
        cos, sin = rope_table(max_pos, self.head_dim, c["rope_theta"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _rope(self, pos: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return self.cos[pos].to(dtype), self.sin[pos].to(dtype)

    def context(self, taps: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """taps [N, S, T*H] of positions 0..S-1 -> per layer k, v [N, G, S, hd]."""
        n, s = taps.shape[:2]
        c = self.hidden_norm(self.fc(taps))
        cos, sin = self._rope(torch.arange(s, device=taps.device), c.dtype)
        out = []
        for layer in self.layers:
            a = layer.self_attn
            k = a.k_norm(a.k_proj(c).view(n, s, self.kv_heads, self.head_dim)).transpose(1, 2)
            v = a.v_proj(c).view(n, s, self.kv_heads, self.head_dim).transpose(1, 2)
            out.append((rotate(k, cos, sin), v))
        return out

    def forward(self, x: torch.Tensor, anchor: torch.Tensor, context: Sequence[tuple[torch.Tensor, torch.Tensor]],
                seen: list[torch.Tensor] | None = None) -> torch.Tensor:
        """x [N, A, B, H]: embeddings of A blocks a sequence; block a starts at position anchor[n, a] and sees the
        context before it and itself, in both directions unless it is causal. Returns the final-normed rows [N, A, B, H];
        `seen` gets per layer what the first head of each group attends to from row 0 in the context, [N, G, A, S]."""
        n, a, b, h = x.shape
        s = context[0][0].shape[2]
        pos = anchor[:, :, None] + torch.arange(b, device=x.device)
        cos, sin = (t[:, :, :, None] for t in self._rope(pos, x.dtype))
        hidden = torch.arange(s, device=x.device) >= anchor[:, :, None]
        mask = torch.zeros(n, a, s, dtype=x.dtype, device=x.device).masked_fill_(hidden, float("-inf"))[:, None, :, None]
        for layer, kv in zip(self.layers, context):
            x = x + self._attend(layer.self_attn, layer.input_layernorm(x), cos, sin, mask, kv, seen)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    def _attend(self, m: Attention, y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor, kv,
                seen: list[torch.Tensor] | None) -> torch.Tensor:
        n, a, b, _ = y.shape
        g, hd, r = self.kv_heads, self.head_dim, self.heads // self.kv_heads
        kc, vc = kv
        q = rotate(m.q_norm(m.q_proj(y).view(n, a, b, self.heads, hd)), cos, sin) * hd ** -0.5
        k = rotate(m.k_norm(m.k_proj(y).view(n, a, b, g, hd)), cos, sin).permute(0, 3, 1, 2, 4)
        v = m.v_proj(y).view(n, a, b, g, hd).permute(0, 3, 1, 2, 4)
        q = q.view(n, a, b, g, r, hd).permute(0, 3, 1, 2, 4, 5).reshape(n, g, a, b * r, hd)
        far = (q.view(n, g, a * b * r, hd) @ kc.transpose(-1, -2)).view(n, g, a, b * r, -1) + mask
        near = q @ k.transpose(-1, -2)
        if self.causal:
            near = near + torch.full((b, b), float("-inf"), dtype=near.dtype, device=near.device).triu(1).repeat_interleave(r, 0)
        p = torch.softmax(torch.cat([far, near], -1), -1)
        s = kc.shape[2]
        if seen is not None:
            seen.append(p[:, :, :, 0, :s])
        o = (p[..., :s].reshape(n, g, a * b * r, s) @ vc).view(n, g, a, b * r, hd) + p[..., s:] @ v
        o = o.view(n, g, a, b, r, hd).permute(0, 2, 3, 1, 4, 5).reshape(n, a, b, -1)
        return m.o_proj(o)

    def block_input(self, embed: torch.Tensor, root: torch.Tensor, width: int) -> torch.Tensor:
        """root [N, A] token ids -> embeddings [N, A, width, H]: the root's row, then the mask's."""
        x = embed[self.mask_id].expand(*root.shape, width, embed.shape[1]).clone()
        x[:, :, 0] = embed[root]
        return x


def new_config(target: Target, layers: int, taps: Sequence[int], block_size: int, mask_id: int, causal: bool = False) -> dict:
    """config.json of a new drafter for a target, in the z-lab layout."""
    c = target.config
    target.check_taps(taps)
    if not 0 <= mask_id < c.vocab:
        raise TrainError(f"mask id {mask_id} is outside the vocabulary of {c.vocab}")
    return dict(architectures=["DFlashDraftModel"], model_type="qwen3", hidden_size=c.hidden, intermediate_size=c.inter,
                num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim, num_hidden_layers=layers, rms_norm_eps=1e-6,
                rope_theta=c.theta, attention_bias=False, layer_types=["full_attention"] * layers, sliding_window=None, use_sliding_window=False,
                vocab_size=c.vocab, block_size=block_size, num_target_layers=c.layers, max_position_embeddings=c.context, hidden_act="silu",
                tie_word_embeddings=False, dtype="bfloat16", is_causal=causal, dflash_config=dict(target_layer_ids=list(taps), mask_token_id=mask_id))


def default_taps(layers: int, n: int) -> list[int]:
    """n layers spread evenly from 1 to layers - 3 (dflash.md 1.1), half to even as Python rounds."""
    return [layers // 2] if n == 1 else [round(1 + i * (layers - 4) / (n - 1)) for i in range(n)]


@torch.no_grad()
def warm_start(draft: DFlash, target: Target, taps_sample: torch.Tensor) -> None:
    """Start from the target: fc passes the last tap on, the layers are those that follow it (or the target's last), and
    the q and k norms get the size that these layers' own q and k have on taps_sample [S, T*H]."""
    c, n = target.config, len(draft.layers)
    first = min(draft.taps[-1] + 1, c.layers - n)
    draft.fc.weight.normal_(0, 0.002)
    draft.fc.weight[:, -c.hidden:] += torch.eye(c.hidden)
    draft.hidden_norm.weight.copy_(target.layer[first].norm1)
    draft.norm.weight.copy_(target.norm)
    for layer, w in zip(draft.layers, target.layer[first:first + n]):
        q, k, v = w.qkv.split([c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim])
        gate, up = w.gate_up.chunk(2)
        for name, value in zip(LAYER_MATRICES, (q, k, v, w.out, gate, up, w.down)):
            layer.get_submodule(name).weight.copy_(value)
        layer.input_layernorm.weight.copy_(w.norm1)
        layer.post_attention_layernorm.weight.copy_(w.norm2)
        y = rms_norm(taps_sample[:, -c.hidden:].to(w.norm1), w.norm1, c.eps)
        for matrix, norm in ((q, layer.self_attn.q_norm), (k, layer.self_attn.k_norm)):
            norm.weight.fill_(float(F.linear(y, matrix).view(-1, c.head_dim).pow(2).mean().sqrt()))


def read_config(path: str) -> dict:
    """config.json of a checkpoint folder."""
    file = os.path.join(path, "config.json")
    try:
        with open(file, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError) as e:
        raise TrainError(f"{file}: {e}") from e


def read_tensors(path: str) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint folder: of model.safetensors, or of the files that its index names."""
    from safetensors.torch import load_file

    file, index = (os.path.join(path, name) for name in ("model.safetensors", "model.safetensors.index.json"))
    tensors: dict[str, torch.Tensor] = {}
    try:
        if not os.path.exists(file) and os.path.exists(index):
            with open(index, encoding="utf-8") as f:
                parts = sorted(set(json.load(f)["weight_map"].values()))
        else:
            parts = ["model.safetensors"]
        for file in (os.path.join(path, name) for name in parts):
            tensors |= load_file(file)
    except Exception as e:
        raise TrainError(f"{file}: {e}") from e
    return tensors


def read_weights(module: nn.Module, path: str) -> dict[str, torch.Tensor]:
    """Loads a checkpoint folder into the module, every tensor of it, and returns those the module has no place for
    (a reduced head and its maps). Raises TrainError for a missing or misshapen one."""
    file, tensors = os.path.join(path, "model.safetensors"), read_tensors(path)
    own = module.state_dict()
    for name, value in own.items():
        if name not in tensors:
            raise TrainError(f"{file}: tensor {name} is missing")
        if tensors[name].shape != value.shape:
            raise TrainError(f"{file}: tensor {name} has shape {list(tensors[name].shape)}, the config asks for {list(value.shape)}")
    module.load_state_dict({k: tensors[k].float() for k in own})
    return {k: v for k, v in tensors.items() if k not in own}


def check_target(config: dict, target: Target, path: str) -> None:
    """Raises TrainError when a checkpoint was trained for a target of another shape."""
    c = target.config
    for key, have in (("hidden_size", c.hidden), ("vocab_size", c.vocab), ("num_target_layers", c.layers)):
        if key in config and config[key] != have:
            raise TrainError(f"{path}: {key} is {config[key]}, the target has {have}: a drafter for another target")


def load_dflash(path: str, target: Target, max_pos: int = 4096) -> DFlash:
    """A checkpoint folder in the z-lab layout, for this target; without its draft vocabulary, if it has one."""
    config = read_config(path)
    config.pop("draft_vocab_size", None)
    if "dflash_config" not in config:
        raise TrainError(f"{path}/config.json: no dflash_config, not a DFlash drafter")
    check_target(config, target, path)
    draft = DFlash(config, max_pos)
    read_weights(draft, path)
    return draft
