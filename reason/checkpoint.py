"""Find a model's checkpoint, and learn what its config.json says, before anything heavy is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from reason.complaints import ConfigError

BUNDLED = "bundled:"


@dataclass(frozen=True)
class Checkpoint:
    """`source` is a folder or a hub id, ready for `from_pretrained`; `config` its config.json."""

    source: str
    config: dict[str, Any]

    @property
    def window(self) -> int | None:
        """The most tokens the model can hold, prompt included; None if its config does not say."""
        window = self.config.get("max_position_embeddings")
        return window if isinstance(window, int) else None


def find_model(path: object) -> Checkpoint:
    """The checkpoint called `path`: `bundled:NAME`, a folder, or a hub id, of which only config.json is fetched.

    Raises: ConfigError in one sentence, within about two seconds.
    """
    if not isinstance(path, str) or not path.strip():
        raise ConfigError(f"model.path must be a folder, a hub id or {BUNDLED}NAME, got {path!r}")
    if path.startswith(BUNDLED):
        return _bundled(path.removeprefix(BUNDLED))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return Checkpoint(str(folder), _read(folder / "config.json"))
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ConfigError(f"model.path={path}: there is no such folder, and it is not a hub id (OWNER/NAME)")
    return Checkpoint(path, _read(_fetch(path)))


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's own tokenizer, as its tokenizer.json says.

    `AutoTokenizer` alone will not do: for some model types (qwen2 among them) it takes the vocabulary, puts the
    family's pre-tokenizer in place of the one in the file, and says nothing.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    declared = get_tokenizer_config(checkpoint.source).get("tokenizer_class")
    generic = declared in ("TokenizersBackend", "PreTrainedTokenizerFast")
    kind: Any = PreTrainedTokenizerFast if generic else AutoTokenizer
    return kind.from_pretrained(checkpoint.source)


def same_vocabulary(one: str, other: str) -> bool:
    """Whether two checkpoints give the same ids to the same tokens; False where a tokenizer.json is not at hand."""
    vocabularies = [_vocabulary(Path(source) / "tokenizer.json") for source in (one, other)]
    return vocabularies[0] is not None and vocabularies[0] == vocabularies[1]


def _vocabulary(file: Path) -> Any:
    """What tokenizer.json says about ids: the vocabulary of its model, and the tokens added to it."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return data["model"]["vocab"], [(token["id"], token["content"]) for token in data["added_tokens"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bundled_names() -> list[str]:
    """The checkpoints shipped with the package."""
    home = Path(str(files("reason").joinpath("models", "bundled")))
    return sorted(config.parent.name for config in home.glob("*/config.json"))


def _bundled(name: str) -> Checkpoint:
    if name not in bundled_names():
        found = ", ".join(bundled_names()) or "none; scripts/train.py makes them"
        raise ConfigError(f"model.path={BUNDLED}{name}: not among the bundled models ({found})")
    folder = Path(str(files("reason").joinpath("models", "bundled", name)))
    return Checkpoint(str(folder), _read(folder / "config.json"))


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"model.path: {file.parent} is not a checkpoint, it has no config.json") from None
    except ValueError as error:
        raise ConfigError(f"model.path: {file} is not valid JSON ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"model.path: {file} must hold a JSON object, it holds a {type(config).__name__}")
    return config


def _fetch(hub_id: str) -> Path:
    """config.json from the hub's cache, else from the hub if one quick look says that it is there."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    from reason.tasks.hub import reachable

    cached = try_to_load_from_cache(hub_id, "config.json")
    if isinstance(cached, str):
        return Path(cached)
    if not reachable():
        raise ConfigError(
            f"model.path={hub_id}: no such folder, not in the local cache, and the hub cannot be reached; "
            "give the folder of a downloaded model"
        )
    try:
        return Path(hf_hub_download(hub_id, "config.json"))
    except (OSError, ValueError) as error:  # every error of the hub's client is one of these
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"model.path={hub_id}: no such folder, and the hub did not give it ({first})") from error
