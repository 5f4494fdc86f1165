#!/bin/sh
# What the kernels take of a multiprocessor, by the compiler's own account: no register is spilled and nothing lies on a
# stack in the kernels that a round lives on, and enough of their blocks fit beside each other.
set -u
cd "$(dirname "$0")/.." || exit 1
dir=${BUILD:-build}/cuda/kernels/cuda
if ! ls "$dir"/*.usage >/dev/null 2>&1; then
    echo "SKIP: no kernels compiled by nvcc"
    exit 0
fi
bad=0
# check FILE KERNEL REGISTERS: every variant of the kernel, for every architecture
check() {
    report=$(awk -v kernel="$2" -v most="$3" '
        /Compiling entry function/ { here = $0 ~ "[0-9]" kernel; n += here; who = $0; sub(/^.*function ./, "", who) }
        here && /bytes stack frame/ { if ($1 + 0 || $5 + 0 || $9 + 0) print who ": " $0 }
        here && /Used [0-9]* registers/ { for (i = 1; i < NF; i++) if ($i == "Used" && $(i + 1) + 0 > most) print who ": " $0 }
        END { if (!n) print "there is no such kernel" }' "$dir/$1.usage")
    if [ -z "$report" ]; then
        echo "[       OK ] resources_of_$2"
    else
        echo "$2: expected no stack, no spills and at most $3 registers"
        echo "$report"
        echo "[  FAILED  ] resources_of_$2"
        bad=1
    fi
}
check matmul stream_kernel 128
check packed packed_kernel 128
check packed split_kernel 64
check matmul_lt halve_kernel 32
check sdpa narrow_kernel 32
check sdpa widen_kernel 32
check attention attend_kernel 128
check attention merge_kernel 64
check elementwise norm_kernel 64
check elementwise norm_short_kernel 64
check elementwise qkv_kernel 64
check elementwise swiglu_kernel 64
check select sample_kernel 128
check select top_k_kernel 128
exit $bad
