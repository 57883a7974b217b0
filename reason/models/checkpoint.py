"""Finds a model's checkpoint, its config.json and its vocabulary before anything heavy is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from reason.config.errors import ConfigError
from reason.models import hub
from reason.models.byte_tokenizer import BYTES, ByteTokenizer
from reason.models.tokenizer import PretrainedTokenizer

BUNDLED = "bundled:"
TOKENIZER, GENERATION = "tokenizer.json", "generation_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """`source` is a folder or a hub id, ready for `from_pretrained`; `config` its config.json."""

    source: str
    config: dict[str, object]

    @property
    def architecture(self) -> str | None:
        """Name of the model's class in transformers; None if its config does not name one."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding, which may be more than the tokenizer has tokens; None if its config does not say."""
        size = self.config.get("vocab_size")
        return size if isinstance(size, int) else None

    @property
    def context_window(self) -> int | None:
        """Maximum tokens per sequence, prompt included; None if its config does not say."""
        window = self.config.get("max_position_embeddings")
        return window if isinstance(window, int) else None


def find_model(path: object, *, key: str = "model.path") -> Checkpoint:
    """Returns the checkpoint called `path`: `bundled:NAME`, a folder, or a hub id, whose config.json alone is fetched;
    `bytes` is no checkpoint, for a model that only its server knows.

    `key` is the setting that errors name. Raises: ConfigError in one sentence, within about two seconds.

    >>> find_model("/no/such", key="scorer.path")
    Traceback (most recent call last):
    reason.config.errors.ConfigError: scorer.path=/no/such: there is no such folder, and it is neither a hub id \
(OWNER/NAME) nor bundled:NAME
    """
    if not isinstance(path, str) or not path.strip():
        raise ConfigError(f"{key} must be a folder, a hub id or {BUNDLED}NAME, got {path!r}")
    if path == BYTES:
        return Checkpoint(BYTES, {})
    if path.startswith(BUNDLED):
        return _find_bundled(path.removeprefix(BUNDLED), key)
    folder = Path(os.path.expanduser(path))
    if folder.is_dir():
        return Checkpoint(str(folder), _read_config(folder / "config.json", key))
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ConfigError(
            f"{key}={path}: there is no such folder, and it is neither a hub id (OWNER/NAME) nor {BUNDLED}NAME"
        )
    source, config_file = hub.locate_on_hub(path, key)
    return Checkpoint(source, _read_config(config_file, key))


def load_tokenizer(source: str) -> PretrainedTokenizer:
    """Loads the tokenizer of the checkpoint at `source`, a folder or a hub id, as its tokenizer.json says.

    `AutoTokenizer` is wrong where there is such a file: for some model types (qwen2 among them) it takes the vocabulary
    and silently replaces the file's pre-tokenizer by the family's. It also makes an empty tokenizer out of no file.

    Raises: ValueError if the checkpoint has no tokenizer, OSError if its files cannot be fetched.
    """
    if source == BYTES:
        return ByteTokenizer()
    import transformers

    is_folder = Path(source).is_dir()
    has_file = (Path(source) / TOKENIZER).is_file() if is_folder else hub.fetch_hub_file(source, TOKENIZER) is not None
    # attributes, not names of an import: reading AutoTokenizer alone imports the model classes, for a second
    loader: Any = transformers.PreTrainedTokenizerFast if has_file else transformers.AutoTokenizer
    tokenizer: Any = loader.from_pretrained(source, trust_remote_code=False)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError(f"{source} has no tokenizer: neither a tokenizer.json nor another kind of vocabulary is there")
    loaded: PretrainedTokenizer = tokenizer
    return loaded


def eos_ids(path: str, tokenizer: PretrainedTokenizer) -> frozenset[int]:
    """Returns every end-of-sequence id that tokenizer and generation config declare (chat models have two)."""
    try:
        if path == BYTES:  # no checkpoint: only its server has one
            file = None
        else:
            file = Path(path) / GENERATION if Path(path).is_dir() else hub.fetch_hub_file(path, GENERATION)
    except OSError:
        file = None
    # a checkpoint need not have one
    declared = _read_config(file, "model.path").get("eos_token_id") if file is not None and file.is_file() else None
    ids = [tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])]
    return frozenset(i for i in ids if isinstance(i, int))


def read_vocabulary(source: str) -> dict[str, int] | None:
    """Returns token to id from tokenizer.json in the folder `source`; None without such a file. Loads no tokenizer."""
    if source == BYTES:
        return ByteTokenizer().get_vocab()
    try:
        data = json.loads((Path(source) / TOKENIZER).read_text(encoding="utf-8"))
        tokens = data["model"]["vocab"]
        if isinstance(tokens, list):  # unigram models list (token, weight); the id is the position
            tokens = {token: i for i, (token, _) in enumerate(tokens)}
        return {**tokens, **{token["content"]: token["id"] for token in data["added_tokens"]}}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bundled_names() -> list[str]:
    """Returns the names of the checkpoints shipped with the package."""
    home = Path(str(files("reason").joinpath("models", "bundled")))
    return sorted(config.parent.name for config in home.glob("*/config.json"))


def _find_bundled(name: str, key: str) -> Checkpoint:
    if name not in bundled_names():
        names = ", ".join(bundled_names()) or "none; `reason train` makes them"
        raise ConfigError(f"{key}={BUNDLED}{name}: not among the bundled models ({names})")
    folder = Path(str(files("reason").joinpath("models", "bundled", name)))
    return Checkpoint(str(folder), _read_config(folder / "config.json", key))


def _read_config(file: Path, key: str) -> dict[str, object]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{key}: {file.parent} is not a checkpoint, it has no config.json") from None
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{key}: {file} is not valid JSON ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{key}: {file} must hold a JSON object, it holds a {type(config).__name__}")
    return config
