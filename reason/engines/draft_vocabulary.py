"""The ids that a draft model may draft, in files (VocabTrim): `reason train stages=[draft_vocabulary]` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from reason.models.checkpoint import find_model

MODEL_TYPE = "draft_vocabulary"


def read_draft_vocabulary(path: object) -> list[int]:
    """Returns the ids of the vocabulary at `path`, a folder or bundled:NAME, most frequent first.

    Raises: ConfigError where there is none; ValueError for a folder of another kind, or ids that are none.
    """
    config = find_model(path, key="speculation.source.vocabulary").config
    kind, ids = config.get("model_type"), config.get("ids")
    if kind != MODEL_TYPE:
        raise ValueError(f"vocabulary={path} is a {kind}; make one with reason train stages=[draft_vocabulary]")
    if not isinstance(ids, list) or not ids or not all(type(one) is int and one >= 0 for one in ids):
        raise ValueError(f"vocabulary={path} must have a list of token ids in its config.json")
    if len(set(ids)) < len(ids):
        raise ValueError(f"vocabulary={path} names an id twice")
    return ids


def save_draft_vocabulary(folder: Path, ids: Sequence[int], base: str) -> None:
    """Writes what `read_draft_vocabulary` reads; `base` is the model that wrote the texts. *Mutates* the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": MODEL_TYPE, "base": base, "ids": list(ids)}
    (folder / "config.json").write_text(json.dumps(config) + "\n", encoding="utf-8")
