#!/bin/sh
# Peak memory of `dgraft run` on the real target with the drafter is within 10 % of what `dgraft info` planned.
set -u
build=${BUILD:-build}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -f "$model" ]; then
    if [ "${CI:-}" = true ]; then echo "$model is missing"; echo "[  FAILED  ] peak memory as planned"; exit 1; fi
    echo "SKIP: $model not found"; echo "[  SKIPPED ] peak memory as planned"; exit 0
fi
python3 - "$build/dgraft" "$model" <<'PY' && echo "[       OK ] peak memory as planned" || { echo "[  FAILED  ] peak memory as planned"; exit 1; }
import json, os, subprocess, sys
dgraft, model = sys.argv[1:]
bad = False
for context in ("1024", "4096"):
    common = ["-m", model, "--draft", "dflash:dflash/checkpoints/smollm2-135m-dflash-b16", "-c", context]
    info = json.loads(subprocess.run([dgraft, "info", "--json", *common], check=True, capture_output=True).stdout)
    plan = info["memory"]["total"]
    run = subprocess.Popen([dgraft, "run", *common, "--chat", "-n", "16", "--ignore-eos", "-p", "Tell me about the sea."],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(run.pid, 0)
    peak = usage.ru_maxrss * 1024
    print(f"context {context}: planned {plan / 2**20:.1f} MiB, peak {peak / 2**20:.1f} MiB, ratio {peak / plan:.3f}")
    bad |= status != 0 or not 0.9 <= peak / plan <= 1.1
sys.exit(bad)
PY
