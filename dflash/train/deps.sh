#!/bin/sh
# Makes build/train-venv with what the training pipeline needs. torch: a build without the CUDA packages where one is to
# be had (Debian's python3-torch), else the pinned wheel with all of them; TORCH=cuda asks for the latter.
set -eu
cd "$(dirname "$0")/../.."
venv=${1:-build/train-venv}
req=dflash/train/requirements.txt
stamp=$venv/.done
[ -f "$stamp" ] && [ "$stamp" -nt "$req" ] && exit 0

debian() {
    [ "${TORCH:-cpu}" = cpu ] && command -v apt-get >/dev/null || return 1
    if ! /usr/bin/python3 -c 'import torch' 2>/dev/null || ! /usr/bin/python3 -c 'import ensurepip' 2>/dev/null; then
        [ "$(id -u)" = 0 ] || return 1
        apt-get update -qq || true
        apt-get install -y -qq --no-install-recommends python3-torch python3-numpy python3-venv >/dev/null || return 1
    fi
}

mkdir -p "$(dirname "$venv")"
if debian; then
    /usr/bin/python3 -m venv --clear --system-site-packages "$venv"
else
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.15.0
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$req"
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__, "cuda" if torch.cuda.is_available() else "cpu")'
touch "$stamp"
