"""Find a model's checkpoint, and learn what its config.json says, before anything heavy is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from reason.config.errors import ConfigError
from reason.models.byte_tokenizer import BYTES, ByteText

BUNDLED = "bundled:"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Checkpoint:
    """`source` is a folder or a hub id, ready for `from_pretrained`; `config` its config.json."""

    source: str
    config: dict[str, Any]

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding, which may be more than the tokenizer has tokens; None if its config does not say."""
        size = self.config.get("vocab_size")
        return size if isinstance(size, int) else None

    @property
    def window(self) -> int | None:
        """The most tokens the model can hold, prompt included; None if its config does not say."""
        window = self.config.get("max_position_embeddings")
        return window if isinstance(window, int) else None


def find_model(path: object, *, key: str = "model.path") -> Checkpoint:
    """The checkpoint called `path`: `bundled:NAME`, a folder, or a hub id, of which only config.json is fetched;
    `bytes` is none at all, for a model that only its server knows.

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
        return _bundled(path.removeprefix(BUNDLED), key)
    folder = Path(os.path.expanduser(path))
    if folder.is_dir():
        return Checkpoint(str(folder), _read(folder / "config.json", key))
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ConfigError(
            f"{key}={path}: there is no such folder, and it is neither a hub id (OWNER/NAME) nor {BUNDLED}NAME"
        )
    return _on_hub(path, key)


def load_tokenizer(source: str) -> Any:
    """The tokenizer of the checkpoint at `source`, a folder or a hub id, as its tokenizer.json says.

    `AutoTokenizer` will not do where there is such a file: for some model types (qwen2 among them) it takes the
    vocabulary, puts the family's pre-tokenizer in place of the one in the file, and says nothing. It also makes
    an empty tokenizer out of no file at all.

    Raises: ValueError if the checkpoint has no tokenizer, OSError if its files cannot be had.
    """
    if source == BYTES:
        return ByteText()
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    kind: Any = PreTrainedTokenizerFast if _has_tokenizer_file(source) else AutoTokenizer
    tokenizer = kind.from_pretrained(source, trust_remote_code=False)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError(f"{source} has no tokenizer: neither a tokenizer.json nor another kind of vocabulary is there")
    return tokenizer


def eos_ids(path: str, tokenizer: Any) -> frozenset[int]:
    """Every end-of-sequence id the checkpoint declares: tokenizer's, and generation config's (chat models have two)."""
    import transformers

    ids = {tokenizer.eos_token_id}
    try:
        declared = transformers.GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # a checkpoint need not have a generation config
        declared = None
    ids.update(declared if isinstance(declared, list) else [declared])
    return frozenset(int(i) for i in ids if i is not None)


def read_vocabulary(source: str) -> dict[str, int] | None:
    """Token to id, as tokenizer.json in the folder `source` has it; None if that is not at hand. Loads nothing."""
    if source == BYTES:
        return ByteText().get_vocab()
    try:
        data = json.loads((Path(source) / TOKENIZER).read_text(encoding="utf-8"))
        tokens = data["model"]["vocab"]
        if isinstance(tokens, list):  # unigram models: a token and its weight; the id is the place
            tokens = {token: i for i, (token, _) in enumerate(tokens)}
        return {**tokens, **{token["content"]: token["id"] for token in data["added_tokens"]}}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def bundled_names() -> list[str]:
    """The checkpoints shipped with the package."""
    home = Path(str(files("reason").joinpath("models", "bundled")))
    return sorted(config.parent.name for config in home.glob("*/config.json"))


def _has_tokenizer_file(source: str) -> bool:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    if Path(source).is_dir():
        return (Path(source) / TOKENIZER).is_file()
    try:
        hf_hub_download(source, TOKENIZER)
    except RemoteEntryNotFoundError:
        return False
    return True


def _bundled(name: str, key: str) -> Checkpoint:
    if name not in bundled_names():
        found = ", ".join(bundled_names()) or "none; scripts/train.py makes them"
        raise ConfigError(f"{key}={BUNDLED}{name}: not among the bundled models ({found})")
    folder = Path(str(files("reason").joinpath("models", "bundled", name)))
    return Checkpoint(str(folder), _read(folder / "config.json", key))


def _read(file: Path, key: str) -> dict[str, Any]:
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


def _on_hub(hub_id: str, key: str) -> Checkpoint:
    """The checkpoint on the hub, or the folder of the local cache while one quick look does not find the hub there:
    asked by id, the hub's client would try for half a minute per file, also for files that it has."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    from reason.tasks.hub import reachable

    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
        if reachable():
            file = Path(cached if isinstance(cached, str) else hf_hub_download(hub_id, "config.json"))
            return Checkpoint(hub_id, _read(file, key))
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # every error of the hub's client is one of these
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{key}={hub_id}: no such folder, and the hub did not give it ({first})") from error
    if isinstance(cached, str):
        return Checkpoint(str(Path(cached).parent), _read(Path(cached), key))
    raise ConfigError(
        f"{key}={hub_id}: no such folder, not in the local cache, and the hub cannot be reached; "
        "give the folder of a downloaded model"
    )
