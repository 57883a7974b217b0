"""Find a reward model's checkpoint and refuse the wrong one before anything heavy is loaded."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from reason.prm.base import Adapter

BUNDLED = "bundled:"


@dataclass(frozen=True)
class Checkpoint:
    """`source` is a folder or a hub id, ready for `from_pretrained`; `config` its config.json."""

    source: str
    config: dict[str, Any]

    def limit(self, adapter: Adapter, at_most: int | None) -> int:
        """How many tokens may be read at once: the least of what the model, the format and the caller allow."""
        limits = (
            self.config.get("max_position_embeddings"),
            self.config.get("sliding_window") if self.config.get("model_type") == "mistral" else None,
            adapter.context_limit,
            at_most,
        )
        known = [limit for limit in limits if limit is not None]
        if not known:
            raise ValueError(f"{self.source}: config.json names no max_position_embeddings, so set max_tokens")
        return int(min(known))


def find_checkpoint(path: str) -> Checkpoint:
    """The checkpoint called `path`: `bundled:NAME`, a folder, or a hub id (only its config.json is fetched here).

    Raises: ValueError in one sentence, naming what was looked for.
    """
    shipped = path.startswith(BUNDLED)
    folder = bundled_folder(path.removeprefix(BUNDLED)) if shipped else Path(path).expanduser()
    if folder.is_dir():
        return Checkpoint(str(folder), _read_config(folder / "config.json"))
    if shipped:
        raise ValueError(f"there is no {path} in {folder.parent}: scripts/train.py makes it, or set scorer.path")
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ValueError(f"there is no reward model in {path}: wanted a folder with config.json, or a hub id")
    return Checkpoint(path, _read_config(_fetch_config(path)))


def bundled_folder(name: str) -> Path:
    """Where a model of that name is, or would be, in the installed package."""
    return Path(str(files("reason").joinpath("models", "bundled", name)))


def check_architecture(checkpoint: Checkpoint, adapter: Adapter) -> str:
    """The checkpoint's architecture. Raises: ValueError naming the valid ones if the adapter cannot read it."""
    found = checkpoint.config.get("architectures") or ["none"]
    if found[0] not in adapter.architectures:
        raise ValueError(
            f"{checkpoint.source} is a {found[0]}, but {type(adapter).__name__} reads "
            f"{', '.join(adapter.architectures)}: choose another scorer or another path"
        )
    return str(found[0])


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file.parent} is not a checkpoint: it has no config.json") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} must hold a JSON object, it holds a {type(config).__name__}")
    return config


def _fetch_config(hub_id: str) -> Path:
    """config.json from the hub's cache, else from the hub. One quick look decides whether the hub is there, because
    the hub's own client tries for half a minute."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.constants import ENDPOINT

    online = _reachable(ENDPOINT)
    try:
        return Path(hf_hub_download(hub_id, "config.json", local_files_only=not online))
    except (OSError, ValueError) as error:  # every error of the hub's client is one of these
        offline = f"no connection to {ENDPOINT}, and it is not in the local cache"
        reason = str(error).splitlines()[0] if online and str(error) else offline
        raise ValueError(
            f"there is no folder {hub_id} and the hub did not give {hub_id}/config.json: {reason}"
        ) from error


def _reachable(endpoint: str, timeout_s: float = 1.5) -> bool:
    """Whether a server answers there; True without asking where a proxy stands between."""
    url = urlsplit(endpoint)
    if getproxies().get(url.scheme):
        return True
    try:
        with socket.create_connection((url.hostname or "", url.port or 443), timeout_s):
            return True
    except OSError:
        return False
