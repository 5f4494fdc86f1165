"""Checkpoints in the published layouts: z-lab's for DFlash, SafeAILab's for EAGLE-3, each a folder with config.json and
model.safetensors in bf16. A draft vocabulary goes beside a DFlash body as d2t (offsets, dflash.md 1.4), with or without the rows of lm_head.weight."""
from __future__ import annotations

import json
import os
import shutil

import torch
import torch.nn as nn

from .errors import TrainError


def write_checkpoint(path: str, config: dict, tensors: dict[str, torch.Tensor], info: dict | None = None) -> None:
    """Writes a folder whole or not at all: it is made beside and renamed. `info` becomes training.json."""
    from safetensors.torch import save_file

    fresh = path.rstrip("/") + ".tmp"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        os.makedirs(fresh)
        _write_json(os.path.join(fresh, "config.json"), config)
        if info:
            _write_json(os.path.join(fresh, "training.json"), info)
        save_file(tensors, os.path.join(fresh, "model.safetensors"), metadata={"format": "pt"})
        os.chmod(os.path.join(fresh, "model.safetensors"), 0o644)  # some versions write it for the owner alone
        if os.path.isdir(path):
            shutil.rmtree(path)
        os.rename(fresh, path)
    except OSError as e:
        shutil.rmtree(fresh, ignore_errors=True)
        raise TrainError(f"{path}: {e}") from e


def _write_json(file: str, value: dict) -> None:
    with open(file, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def body(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's tensors by their published names, bf16."""
    return {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in module.state_dict().items()}


def reduced_head(head: torch.Tensor, ids: torch.Tensor, rows: bool) -> dict[str, torch.Tensor]:
    """A draft vocabulary of `ids` (ascending): d2t [n], whose entry i is ids[i] - i, and with `rows` also the target's head
    rows of these ids, lm_head.weight [n, H]. Without them dgraft takes the rows from the target that it runs."""
    d2t = {"d2t": ids.to(torch.int64) - torch.arange(len(ids))}
    return {"lm_head.weight": head[ids].detach().to("cpu", torch.bfloat16).contiguous(), **d2t} if rows else d2t
