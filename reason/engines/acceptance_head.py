"""The trained head of SpecDec++ in files: `reason train stages=[acceptance_head]` saves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from reason.models.checkpoint import Checkpoint, find_model

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.speculation.drafters.acceptance_head import AcceptanceHead

MODEL_TYPE = "acceptance_head"


def find_acceptance_head(path: object) -> Checkpoint:
    """Returns the checkpoint at `path`, a folder or bundled:NAME; its weights are not read yet.

    Raises: ConfigError where there is none; ValueError for one of another kind.
    """
    checkpoint = find_model(path, key="speculation.source.stop_head")
    kind = checkpoint.config.get("model_type")
    if kind != MODEL_TYPE:
        raise ValueError(f"stop_head={path} is a {kind}; make one with reason train stages=[acceptance_head]")
    return checkpoint


def load_acceptance_head(path: object, hidden_size: int) -> AcceptanceHead:
    """Returns the head at `path`, for a draft model with hidden states of this size.

    Raises: as `find_acceptance_head`; ValueError also for a head of another size.
    """
    from safetensors.torch import load_file

    from decoding.speculation.drafters.acceptance_head import AcceptanceHead

    checkpoint = find_acceptance_head(path)
    size = checkpoint.config.get("hidden_size")
    if size != hidden_size:
        raise ValueError(f"stop_head={path} reads hidden states of {size} numbers, the draft model has {hidden_size}")
    tensors = load_file(Path(checkpoint.source) / "head.safetensors")
    count = sum(name.startswith("weight") for name in tensors)
    blocks = [(tensors[f"weight{i}"], tensors[f"bias{i}"]) for i in range(count)]
    return AcceptanceHead(blocks, (tensors["out_weight"], tensors["out_bias"]))


def save_acceptance_head(folder: Path, head: AcceptanceHead, base: str) -> None:
    """Writes a checkpoint that `load_acceptance_head` reads; `base` is the draft model. *Mutates* the folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"out_weight": head.out[0], "out_bias": head.out[1]}
    for i, (weight, bias) in enumerate(head.blocks):
        tensors |= {f"weight{i}": weight.contiguous(), f"bias{i}": bias}
    save_file(tensors, folder / "head.safetensors")
    config = {"model_type": MODEL_TYPE, "base": base, "hidden_size": len(head.out[0])}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
