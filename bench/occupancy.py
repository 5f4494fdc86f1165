#!/usr/bin/env python3
"""How many warps of the CUDA kernels fit on a multiprocessor, by ptxas's account in build/cuda/kernels/cuda/*.usage.

    make CUDA=1 && python3 bench/occupancy.py --sm 90 --head-dim 128

Registers come in units of 256 a warp; a block takes 1 KB of shared memory besides its own. Of a kernel's variants (types of
weights, rows) that with the most registers counts.
"""
import argparse
import glob
import re

SM = {  # warps, blocks, KB of shared memory of a multiprocessor
    80: (64, 32, 164),
    86: (48, 16, 100),
    89: (48, 24, 100),
    90: (64, 32, 228),
}

# Threads of a block, as the kernels' files launch them, and floats of dynamic shared memory by head_dim.
THREADS = {
    "packed_kernel": 256, "stream_kernel": 128, "split_kernel": 128, "halve_kernel": 256, "narrow_kernel": 256, "widen_kernel": 256,
    "attend_kernel": 128, "merge_kernel": 64, "norm_kernel": 256, "norm_short_kernel": 128, "qkv_kernel": 128, "swiglu_kernel": 128,
    "sample_kernel": 512, "top_k_kernel": 512,
}
DYNAMIC = {"attend_kernel": lambda hd: 3 * 16 * hd + 16 * (hd + 1) + 16 * 128, "qkv_kernel": lambda hd: 4 * hd}


def kernels(folder, sm):
    """(name, rows of x where the kernel is made for a number of them, registers, shared bytes, spilled bytes)"""
    name = None
    for path in sorted(glob.glob(f"{folder}/*.usage")):
        for line in open(path):
            if entry := re.search(r"entry function '_Z\d*([a-z_]+_kernel)(\w*)' for 'sm_(\d+)'", line):
                name = entry[1] if int(entry[3]) == sm else None
                rows = re.search(r"ILi?n?\d+ELi(\d+)E", entry[2])
                rows = int(rows[1]) * (8 if name == "packed_kernel" else 1) if rows else 0
            elif spills := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
                spilled = int(spills[1]) + int(spills[2])
            elif name and (used := re.search(r"Used (\d+) registers", line)):
                shared = re.search(r"(\d+) bytes smem", line)
                yield name, rows, int(used[1]), int(shared[1]) if shared else 0, spilled


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", nargs="?", default="build/cuda/kernels/cuda")
    p.add_argument("--sm", type=int, choices=SM, default=90)
    p.add_argument("--head-dim", type=int, default=128)
    a = p.parse_args()
    warps, blocks, shared_kb = SM[a.sm]
    found = {}
    for name, rows, *use in kernels(a.folder, a.sm):
        if name in THREADS:
            found.setdefault((name, rows), []).append(use)
    if not found:
        p.error(f"no account of sm_{a.sm} in {a.folder}: build with make CUDA=1")
    print(f"{f'sm_{a.sm}':20} {'rows':>4} {'registers':>10} {'spilled':>8} {'shared':>7} {'blocks':>7} {'warps':>6}  of {warps}")
    for (name, rows), uses in sorted(found.items()):
        registers = max(u[0] for u in uses)
        shared = max(u[1] for u in uses) + 4 * DYNAMIC.get(name, lambda hd: 0)(a.head_dim)
        in_block = THREADS[name] // 32
        fit = min(blocks, warps // in_block, 65536 // (-(-registers // 8) * 256 * in_block), shared_kb * 1024 // (shared + 1024))
        print(f"{name:20} {rows or '':>4} {f'{min(u[0] for u in uses)}-{registers}':>10} {sum(u[2] for u in uses):8} {shared:7} {fit:7} "
              f"{fit * in_block:6}  {100 * fit * in_block / warps:.0f} %")


if __name__ == "__main__":
    main()
