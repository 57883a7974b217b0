"""Tells checkpoints apart by a digest of samples of their weights, without reading all of them.

Checkpoints of one training run have the same names, configs, sizes and headers; only the weights differ.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 12  # of a file, evenly over it: some milliseconds, also for gigabytes


def digest_weights(source: str, revision: str | None = None) -> str:
    """Returns a digest of config.json and of the sizes and samples of the weight files of a folder, a file or a hub id.

    The digest is of `source` itself where nothing is found: a model whose files are on another machine.
    """
    folder = _find_folder(source, revision)
    files = [] if folder is None else _list_files(folder)
    digest = blake2b(digest_size=8)
    if not files:
        digest.update(source.encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as data:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(data.read())
                continue
            for sample in range(_SAMPLES):
                data.seek((size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _find_folder(source: str, revision: str | None) -> Path | None:
    """Returns the folder or file of a model; of a hub id that in the cache, where the model was loaded from."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    try:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(source, "config.json", revision=revision)
    except (ImportError, ValueError):  # ValueError: it is no hub id
        return None
    return Path(config).parent if isinstance(config, str) else None


def _list_files(path: Path) -> list[Path]:
    """Returns config.json and the weight files: those of the index, else all of the format that loaders prefer."""
    if path.is_file():
        return [path]
    weights: list[Path] = []
    for suffix in ("safetensors", "bin"):
        for index in sorted(path.glob(f"*.{suffix}.index.json")):
            names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            weights += [path / name for name in sorted(set(names))]
        if weights := [file for file in weights or sorted(path.glob(f"*.{suffix}")) if file.is_file()]:
            break
    config = path / "config.json"
    return [config, *weights] if config.is_file() and weights else weights
