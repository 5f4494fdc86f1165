#!/usr/bin/env python3
"""The least possible time of a plain step, a verification, a drafter's pass and a round, on paper.

Every product takes the longer of reading its weights once and computing, attention the longer of reading the cache once and
computing; nothing overlaps, and a launch costs what is given. What a GPU really does is at best this. Beside it the bytes that
the kernels of kernels/cuda/ ask for, most of which a cache may answer; tests/cudasim/test_traffic.c counts them.

    python3 bench/roofline.py --gpu h200 --model qwen3-8b --type bf16 --context 2048 --accepted 4.5
"""
import argparse
import dataclasses
import math

GPUS = {  # bytes/s, dense bf16 FLOP/s: the makers' data sheets
    "h200": (4.8e12, 989e12),
    "h100": (3.35e12, 989e12),
    "a100": (2.04e12, 312e12),
    "l40s": (0.864e12, 362e12),
    "rtx4090": (1.008e12, 165e12),
}

BYTES = {"f32": 4, "bf16": 2, "q8_0": 34 / 32, "q6_k": 210 / 256, "q4_1": 20 / 32, "q4_k": 144 / 256, "q4_0": 18 / 32}


@dataclasses.dataclass
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    taps: int = 0  # feature layers that a drafter reads

    def products(self):
        """(outputs, inputs) of every product of a layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [(q + 2 * kv, self.hidden), (self.hidden, q), (2 * self.ffn, self.hidden), (self.hidden, self.ffn)]


MODELS = {
    "qwen3-8b": Shape(36, 4096, 32, 8, 128, 12288, 151936),
    "qwen3-4b": Shape(36, 2560, 32, 8, 128, 9728, 151936),
    "llama-3.1-8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),
    "smollm2-135m": Shape(30, 576, 9, 3, 64, 1536, 49152),
}

# Kernels of a layer: two norms, products in four launches, what lies between q, k, v and attention, attention and its merge,
# activation; where weights are packed, four more split activations.
LAUNCHES = 10
SPLITS = 4


class Roof:
    def __init__(self, bandwidth, flops, launch, kv_bytes):
        self.bandwidth, self.flops, self.launch, self.kv_bytes = bandwidth, flops, launch, kv_bytes

    def product(self, rows, outputs, inputs, weight_bytes):
        return max(outputs * inputs * weight_bytes / self.bandwidth, 2 * rows * outputs * inputs / self.flops)

    def attention(self, shape, rows, context):
        cache = 2 * (context + rows) * shape.kv_heads * shape.head_dim * self.kv_bytes
        work = 4 * rows * (context + rows) * shape.heads * shape.head_dim
        return max(cache / self.bandwidth, work / self.flops)

    def network(self, shape, rows, context, weight_bytes, head_rows):
        launches = LAUNCHES + (SPLITS if weight_bytes < 4 else 0)
        layer = sum(self.product(rows, o, i, weight_bytes) for o, i in shape.products())
        layer += self.attention(shape, rows, context) + launches * self.launch
        head = self.product(head_rows, shape.vocab, shape.hidden, weight_bytes) if head_rows else 0
        return shape.layers * layer + head

    def least_bytes(self, shape, rows, context, weight_bytes, head_rows):
        """Weights and cache once."""
        return self.weights(shape, weight_bytes, head_rows) + self.cache(shape, rows, context)

    def asked_bytes(self, shape, rows, context, weight_bytes, head_rows):
        """What the backend's own kernels read, in (weights, cache, activations of products), as often as they ask.

        Packed weights: once for 64 rows, and the words of x once for sixteen outputs, in tiles of 8, 16, 32 or 64 rows. Other
        weights: once for eight rows, and x once for two outputs. Cache: once for every sixteen queries of a KV head."""
        packed = weight_bytes < 4
        step, outs = (64, 16) if packed else (8, 2)
        tile = rows if rows <= 8 or not packed else min(64, 2 ** math.ceil(math.log2(rows)))
        x = shape.layers * sum(o / outs * i for o, i in shape.products()) * tile * 4
        x += shape.vocab / outs * shape.hidden * tile * 4 if head_rows else 0
        strips = math.ceil(rows * shape.heads / shape.kv_heads / 16)
        return (self.weights(shape, weight_bytes, head_rows) * math.ceil(rows / step), self.cache(shape, rows, context) * strips, x)

    def weights(self, shape, weight_bytes, head_rows):
        layer = sum(o * i for o, i in shape.products())
        return (shape.layers * layer + (shape.vocab * shape.hidden if head_rows else 0)) * weight_bytes

    def cache(self, shape, rows, context):
        return shape.layers * 2 * (context + rows) * shape.kv_heads * shape.head_dim * self.kv_bytes

    def features(self, shape, rows, weight_bytes):
        """Features of accepted rows into a drafter's cache: fc, then K and V of every layer."""
        kv = 2 * shape.kv_heads * shape.head_dim
        return (self.product(rows, shape.hidden, shape.taps * shape.hidden, weight_bytes)
                + shape.layers * self.product(rows, kv, shape.hidden, weight_bytes))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--gpu", choices=GPUS, default="h200")
    p.add_argument("--bandwidth", type=float, help="bytes/s, in place of the GPU's")
    p.add_argument("--flops", type=float, help="FLOP/s, in place of the GPU's")
    p.add_argument("--launch", type=float, default=2e-6, help="seconds that a kernel costs besides its work, in a graph too")
    p.add_argument("--model", choices=MODELS, default="qwen3-8b")
    p.add_argument("--type", choices=BYTES, default="bf16", help="of the target's weights")
    p.add_argument("--draft-type", choices=BYTES, default="bf16")
    p.add_argument("--draft-layers", type=int, default=5)
    p.add_argument("--block", type=int, default=16, help="rows of the drafter's pass")
    p.add_argument("--taps", type=int, default=5, help="feature layers of the drafter")
    p.add_argument("--context", type=int, default=2048)
    p.add_argument("--kv", choices=("f16", "f32"), default="f16")
    p.add_argument("--accepted", type=float, default=4.0, help="tokens gained in a round")
    a = p.parse_args()

    bandwidth, flops = GPUS[a.gpu]
    roof = Roof(a.bandwidth or bandwidth, a.flops or flops, a.launch, 2 if a.kv == "f16" else 4)
    shape, weight = MODELS[a.model], BYTES[a.type]
    drafter = dataclasses.replace(shape, layers=a.draft_layers, taps=a.taps)
    plain = roof.network(shape, 1, a.context, weight, 1)
    draft = roof.network(drafter, a.block, a.context, BYTES[a.draft_type], a.block - 1)
    print(f"{a.model} {a.type} on {a.gpu}, {a.context} tokens: {roof.bandwidth / 1e12:.2f} TB/s, {roof.flops / 1e12:.0f} TFLOP/s, "
          f"{a.launch * 1e6:.1f} us a launch")
    print(f"{'plain step':24} {plain * 1e3:8.3f} ms   {1 / plain:8.0f} tokens/s")
    for rows in (16, 61):
        verify = roof.network(shape, rows, a.context, weight, rows)
        whole = verify + draft + roof.features(drafter, a.accepted, BYTES[a.draft_type])
        print(f"{f'verify {rows} rows':24} {verify * 1e3:8.3f} ms   {verify / plain:8.2f} plain steps")
        print(f"{f'  round of {a.accepted:g} tokens':24} {whole * 1e3:8.3f} ms   {a.accepted / whole:8.0f} tokens/s, "
              f"{a.accepted / whole * plain:.2f} times plain")
    print(f"{f'drafter pass, {a.block} rows':24} {draft * 1e3:8.3f} ms   {draft / plain:8.2f} plain steps")
    print(f"\n{'bytes read, GB':24} {'least':>8} {'weights':>8} {'cache':>8} {'activations':>12}")
    for rows in (1, 16, 61):
        asked = roof.asked_bytes(shape, rows, a.context, weight, rows)
        print(f"{f'{rows} rows':24} {roof.least_bytes(shape, rows, a.context, weight, rows) / 1e9:8.2f} {asked[0] / 1e9:8.2f} "
              f"{asked[1] / 1e9:8.2f} {asked[2] / 1e9:12.2f}")


if __name__ == "__main__":
    main()
