"""The frozen target in torch: a Llama- or Qwen3-type decoder read from a Hugging Face directory or a GGUF file.

Owns: weights (dequantised exactly), the packed forward with feature taps, and a batched one-token step on a slot cache.
Must not know: drafters, losses, files of answers.
Conventions: a tap id l names the residual stream after zero-based layer l, before any norm (dflash.md 2.1)."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Callable, Sequence

import torch
import torch.nn.functional as F

from .errors import TrainError

MODEL_TYPES = ("llama", "qwen3")


@dataclass(frozen=True)
class TargetConfig:
    """Shapes and constants of a target; the same fields whatever file they came from."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab: int
    eps: float
    theta: float
    context: int
    qk_norm: bool


@dataclass
class LayerWeights:
    """One decoder layer; matrices are [out, in], q/k/v and gate/up are stacked along `out`."""

    norm1: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    norm2: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., n] * rsqrt(mean(x^2) + eps) * weight [n]; statistics in float32."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return y.to(x.dtype) * weight


def rope_table(n: int, head_dim: int, theta: float, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin [n, head_dim] of the rotate-half form (pairs d, d + head_dim/2)."""
    inv = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * inv
    angle = torch.cat([angle, angle], -1)
    return angle.cos().float().to(device), angle.sin().float().to(device)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [..., head_dim]; cos and sin broadcast against x."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Grouped attention. q [B, H, S, hd], k and v [B, G, T, hd], mask additive, broadcast to [B, 1, S, T].
    Query head h reads key head h // (H/G). Returns [B, S, H*hd]."""
    b, h, s, hd = q.shape
    g = k.shape[1]
    q = q.reshape(b, g, (h // g) * s, hd) * hd ** -0.5
    score = q @ k.transpose(-1, -2)
    if mask is not None:
        score = (score.view(b, g, h // g, s, -1) + mask[:, :, None]).view(b, g, (h // g) * s, -1)
    o = torch.softmax(score.float(), -1).to(v.dtype) @ v
    return o.view(b, h, s, hd).transpose(1, 2).reshape(b, s, h * hd)


class Target:
    """Weights on one device in one dtype. Nothing here needs gradients."""

    def __init__(self, config: TargetConfig, get: Callable[[str], torch.Tensor | None], dtype: torch.dtype = torch.float32,
                 device: str = "cpu", max_pos: int = 4096):
        """get(name) returns the tensor of a Hugging Face name, or None where the file has none."""
        self.config, self.dtype, self.device = config, dtype, device
        c = config

        def need(name: str, *shape: int) -> torch.Tensor:
            t = get(name)
            if t is None:
                raise TrainError(f"target: tensor {name} is missing")
            if tuple(t.shape) != shape:
                raise TrainError(f"target: tensor {name} has shape {list(t.shape)}, the config asks for {list(shape)}")
            return t.to(device=device, dtype=dtype).contiguous()

        self.embed = need("model.embed_tokens.weight", c.vocab, c.hidden)
        self.head = self.embed if get("lm_head.weight") is None else need("lm_head.weight", c.vocab, c.hidden)
        self.norm = need("model.norm.weight", c.hidden)
        self.layer = [self._read_layer(need, i) for i in range(c.layers)]
        self.cos, self.sin = rope_table(min(max_pos, c.context), c.head_dim, c.theta, device)

    def _read_layer(self, need: Callable[..., torch.Tensor], i: int) -> LayerWeights:
        c, p = self.config, f"model.layers.{i}."
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        return LayerWeights(
            norm1=need(p + "input_layernorm.weight", c.hidden),
            qkv=torch.cat([need(p + f"self_attn.{n}_proj.weight", rows, c.hidden) for n, rows in (("q", q), ("k", kv), ("v", kv))]),
            out=need(p + "self_attn.o_proj.weight", c.hidden, q),
            norm2=need(p + "post_attention_layernorm.weight", c.hidden),
            gate_up=torch.cat([need(p + f"mlp.{n}_proj.weight", c.inter, c.hidden) for n in ("gate", "up")]),
            down=need(p + "mlp.down_proj.weight", c.hidden, c.inter),
            q_norm=need(p + "self_attn.q_norm.weight", c.head_dim) if c.qk_norm else None,
            k_norm=need(p + "self_attn.k_norm.weight", c.head_dim) if c.qk_norm else None)

    # ---- pieces of a layer ----

    def split_heads(self, w: LayerWeights, y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        """y [B, S, (H+2G)*hd] -> q [B, H, S, hd], k, v [B, G, S, hd]; q and k normed (Qwen3) and rotated."""
        c = self.config
        y = y.view(*y.shape[:2], c.heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = y.split([c.heads, c.kv_heads, c.kv_heads], 2)
        if c.qk_norm:
            q, k = rms_norm(q, w.q_norm, c.eps), rms_norm(k, w.k_norm, c.eps)
        cos, sin = cos.to(y.dtype), sin.to(y.dtype)
        return rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)

    def mlp(self, w: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        """x plus the SwiGLU of its norm."""
        gate, up = F.linear(rms_norm(x, w.norm2, self.config.eps), w.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, w.down)

    # ---- whole sequences ----

    @torch.no_grad()
    def forward(self, ids: torch.Tensor, taps: Sequence[int] = (), keep_kv: bool = False):
        """run() without a graph."""
        return self.run(ids, taps, keep_kv)

    def run(self, ids: torch.Tensor, taps: Sequence[int] = (), keep_kv: bool = False):
        """Causal pass over right-padded ids [B, S]. Returns the final-normed stream [B, S, H], the taps [B, S, T*H]
        in the order of `taps` (or None), and per layer (k, v) [B, G, S, hd] when keep_kv is set."""
        self.check_taps(taps)
        s = ids.shape[1]
        x = F.embedding(ids, self.embed)
        cos, sin = self.cos[:s, None], self.sin[:s, None]
        mask = torch.full((s, s), float("-inf"), dtype=self.dtype, device=ids.device).triu(1)[None, None]
        tapped, cache = {}, []
        for i, w in enumerate(self.layer):
            q, k, v = self.split_heads(w, F.linear(rms_norm(x, w.norm1, self.config.eps), w.qkv), cos, sin)
            if keep_kv:
                cache.append((k, v))
            x = self.mlp(w, x + F.linear(attend(q, k, v, mask), w.out))
            if i in taps:
                tapped[i] = x
        joined = torch.cat([tapped[i] for i in taps], -1) if len(taps) else None
        return rms_norm(x, self.norm, self.config.eps), joined, cache

    def check_taps(self, taps: Sequence[int]) -> None:
        """Raises TrainError for a tap that names no layer."""
        for t in taps:
            if not 0 <= t < self.config.layers:
                raise TrainError(f"target: feature layer {t} is outside 0..{self.config.layers - 1}")

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, H] after the final norm -> [n, V]."""
        return F.linear(x, self.head)


class SlotCache:
    """Keys and values of `slots` sequences of at most `length` tokens: k, v [layers][slots, G, length, hd]."""

    def __init__(self, target: Target, slots: int, length: int):
        c = target.config
        self.k = [torch.zeros(slots, c.kv_heads, length, c.head_dim, dtype=target.dtype, device=target.device) for _ in range(c.layers)]
        self.v = [torch.zeros_like(t) for t in self.k]

    def load(self, slot: int, cache: list, row: int, n: int) -> None:
        """Copy the first n positions of sequence `row` of Target.forward's cache into a slot."""
        for k, v, (ck, cv) in zip(self.k, self.v, cache):
            k[slot, :, :n], v[slot, :, :n] = ck[row, :, :n], cv[row, :, :n]

    def move(self, src: int, dst: int, n: int) -> None:
        """Move n positions from one slot to another."""
        for t in (*self.k, *self.v):
            t[dst, :, :n] = t[src, :, :n]


@torch.no_grad()
def step(target: Target, cache: SlotCache, token: torch.Tensor, pos: torch.Tensor, taps: Sequence[int] = ()):
    """One token for the first n slots: token, pos [n]. Returns the final-normed stream [n, H] and the taps [n, T*H]."""
    n, c = token.shape[0], target.config
    end = int(pos.max()) + 1
    row = torch.arange(n, device=token.device)
    mask = torch.zeros(n, 1, 1, end, dtype=target.dtype, device=token.device)
    mask.masked_fill_((torch.arange(end, device=token.device) > pos[:, None])[:, None, None], float("-inf"))
    x = F.embedding(token, target.embed)[:, None]
    cos, sin = target.cos[pos][:, None, None], target.sin[pos][:, None, None]
    tapped = {}
    for i, w in enumerate(target.layer):
        q, k, v = target.split_heads(w, F.linear(rms_norm(x, w.norm1, c.eps), w.qkv), cos, sin)
        cache.k[i][row, :, pos], cache.v[i][row, :, pos] = k[:, :, 0], v[:, :, 0]
        o = attend(q, cache.k[i][:n, :, :end], cache.v[i][:n, :, :end], mask)
        x = target.mlp(w, x + F.linear(o, w.out))
        if i in taps:
            tapped[i] = x[:, 0]
    joined = torch.cat([tapped[i] for i in taps], -1) if len(taps) else None
    return rms_norm(x[:, 0], target.norm, c.eps), joined


# ---- readers ----


def load_target(path: str, dtype: torch.dtype = torch.float32, device: str = "cpu", max_pos: int = 4096) -> Target:
    """A directory with config.json and safetensors, or a .gguf file."""
    if not os.path.exists(path):
        raise TrainError(f"target: {path} does not exist")
    config, get = _open_hf(path) if os.path.isdir(path) else _open_gguf(path)
    return Target(config, get, dtype, device, max_pos)


def _open_hf(path: str):
    file = os.path.join(path, "config.json")
    try:
        with open(file, encoding="utf-8") as f:
            c = json.load(f)
    except (OSError, ValueError) as e:
        raise TrainError(f"target: {file}: {e}") from e
    rope = c.get("rope_parameters") or {}
    scaling = c.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
    _refuse(file, c.get("model_type"), scaling, c.get("attention_bias"), "full_attention" in (c.get("layer_types") or ["full_attention"])
            and "sliding_attention" not in (c.get("layer_types") or []))
    heads = c["num_attention_heads"]
    config = TargetConfig(
        model_type=c["model_type"], hidden=c["hidden_size"], layers=c["num_hidden_layers"], heads=heads,
        kv_heads=c.get("num_key_value_heads", heads), head_dim=c.get("head_dim") or c["hidden_size"] // heads,
        inter=c["intermediate_size"], vocab=c["vocab_size"], eps=c["rms_norm_eps"],
        theta=float(c.get("rope_theta") or rope.get("rope_theta") or 10000.0), context=c["max_position_embeddings"],
        qk_norm=c["model_type"] == "qwen3")
    return config, _safetensors_getter(path)


def _refuse(file: str, model_type: str | None, scaling: object, bias: object, full: bool = True) -> None:
    if model_type not in MODEL_TYPES:
        raise TrainError(f"target: {file}: model_type is {model_type!r}, expected one of {', '.join(MODEL_TYPES)}")
    if scaling:
        raise TrainError(f"target: {file}: rope scaling {scaling} is not supported in training")
    if bias:
        raise TrainError(f"target: {file}: attention_bias is not supported in training")
    if not full:
        raise TrainError(f"target: {file}: sliding-window layers are not supported in training")


def _safetensors_getter(path: str) -> Callable[[str], torch.Tensor | None]:
    from safetensors import safe_open

    where: dict[str, str] = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            file = os.path.join(path, name)
            try:
                with safe_open(file, "pt") as f:
                    where.update({k: file for k in f.keys()})
            except Exception as e:
                raise TrainError(f"target: {file}: {e}") from e
    if not where:
        raise TrainError(f"target: {path} has no .safetensors file")

    def get(name: str) -> torch.Tensor | None:
        if name not in where:
            return None
        with safe_open(where[name], "pt") as f:
            return f.get_tensor(name)

    return get


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def _open_gguf(path: str):
    from gguf import GGUFReader
    from gguf.quants import dequantize

    try:
        reader = GGUFReader(path)
    except Exception as e:
        raise TrainError(f"target: {path}: {e}") from e
    arch = gguf_field(reader, "general.architecture")
    _refuse(path, arch, gguf_field(reader, f"{arch}.rope.scaling.type"), None)
    field = lambda key, default=None: gguf_field(reader, f"{arch}.{key}", default)
    tensor = {t.name: t for t in reader.tensors}
    heads, hidden = field("attention.head_count"), field("embedding_length")
    config = TargetConfig(
        model_type=arch, hidden=hidden, layers=field("block_count"), heads=heads, kv_heads=field("attention.head_count_kv", heads),
        head_dim=field("attention.key_length", hidden // heads), inter=field("feed_forward_length"),
        vocab=int(tensor["token_embd.weight"].shape[1]), eps=field("attention.layer_norm_rms_epsilon"),
        theta=field("rope.freq_base", 10000.0), context=field("context_length"), qk_norm=arch == "qwen3")

    def get(name: str) -> torch.Tensor | None:
        t = tensor.get(_gguf_name(name))
        if t is None:
            return None
        value = torch.from_numpy(dequantize(t.data, t.tensor_type).copy()).float().view(*reversed([int(n) for n in t.shape]))
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            value = unpermute(value, config.heads if name.endswith("q_proj.weight") else config.kv_heads)
        return value

    return config, get


def _gguf_name(name: str) -> str:
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight", "model.norm.weight": "output_norm.weight"}
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest[:-len('.weight')]]}.weight"


def unpermute(w: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a GGUF llama q or k matrix (interleaved pairs) back to rotate-half order."""
    rows, cols = w.shape
    return w.view(heads, rows // heads // 2, 2, cols).transpose(1, 2).reshape(rows, cols)


def gguf_field(reader, key: str, default=None):
    """The value of a metadata key as a Python object."""
    field = reader.fields.get(key)
    return default if field is None else field.contents()
