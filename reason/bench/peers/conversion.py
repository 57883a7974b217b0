"""Keeps checkpoints that were converted for another engine, so that they are converted once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from reason.engines.cost_store import cache_folder

FOLDER = "converted_models"
_PARTS = ("*.json", "*.safetensors")


def convert_once(source: str, name: str, version: str, convert: Callable[[str, Path], None]) -> Path:
    """Returns what `convert(source, path)` wrote, in the user's cache folder; converts where it is not there.

    `source` is the folder of a checkpoint. Its content, `name` and `version` say whether it is the same conversion. A
    conversion that fails leaves nothing.
    """
    target = cache_folder() / FOLDER / f"{_digest(Path(source), version)}-{name}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix="new-"))
        try:
            convert(source, work / name)
            os.replace(work / name, target)
        finally:
            shutil.rmtree(work)
    return target


def _digest(source: Path, version: str) -> str:
    digest = blake2b(version.encode(), digest_size=16)
    for file in sorted(file for pattern in _PARTS for file in source.glob(pattern)):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
