"""The trained head of `acceptance=judge`: saved by `reason train stages=[judge_head]`, read before a model loads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from decoding.speculation.acceptance.judge import Judge
from reason.models.checkpoint import find_model

MODEL_TYPE = "judge_head"


def load_judge(path: object, threshold: float = 0.5) -> Judge:
    """Returns the acceptance rule with the head at `path`, a folder or bundled:NAME.

    Raises: ConfigError where there is no such checkpoint; ValueError for one of another kind or a wrong threshold.
    """
    from safetensors.numpy import load_file

    checkpoint = find_model(path, key="acceptance.path")
    kind = checkpoint.config.get("model_type")
    if kind != MODEL_TYPE:
        raise ValueError(
            f"path={path} is a {kind}, not a head of acceptance=judge; make one with reason train stages=[judge_head]"
        )
    tensors = load_file(Path(checkpoint.source) / "head.safetensors")
    return Judge(tensors["weight"], float(tensors["bias"][0]), threshold)


def save_judge(folder: Path, weight_D: npt.NDArray[np.float32], bias: float, base: str) -> None:
    """Writes a checkpoint that `load_judge` reads; `base` is the target model. *Mutates* the folder."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": weight_D, "bias": np.array([bias], dtype=np.float32)}, folder / "head.safetensors")
    config = {"model_type": MODEL_TYPE, "base": base, "hidden_size": len(weight_D)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
