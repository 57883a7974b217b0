"""A process reward model as a scorer: any adapter, any checkpoint it can read, loaded once and late."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from decoding.core import Reader, Tokens
from decoding.validation import is_count
from reason.models.checkpoint import Checkpoint, load_tokenizer, read_vocabulary
from reason.scorers.base import Adapter, StepFormat
from reason.scorers.checkpoint import find_reward_model, token_limit
from reason.scorers.incremental import BoundPrm

DTYPES = ("auto", "float32", "float64", "bfloat16")
DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")


def check_same_vocabulary(setting: str, ours: Mapping[str, int], writers: Mapping[str, int]) -> None:
    """Raises: ValueError if the reward model of `setting` and the writer give different ids to the same tokens."""
    if ours != writers:
        raise ValueError(
            f"{setting} reads the writer's token ids, but its vocabulary is another one than that of model.path; "
            "choose a model of the same vocabulary or, to score, one that reads text (scorer=qwen_prm, skywork_prm, "
            "token_classification, ...), or scorer=likelihood"
        )


class OpenReader(Reader, Protocol):
    """A reader that holds something: weights, or connections."""

    def close(self) -> None:
        """Gives it back."""
        ...


@dataclass(frozen=True)
class Loaded:
    """What a loaded reward model consists of. `limit` is in tokens."""

    checkpoint: Checkpoint
    tokenizer: Any
    form: StepFormat
    reader: OpenReader
    limit: int


class PrmScorer:
    """Scores steps with the reward model at `path`, read the way `adapter` says.

    path        a folder, a hub id, or bundled:NAME
    device      auto (CUDA if there is one), cpu, cuda, cuda:1, ...
    dtype       auto (float32 on CPU, bfloat16 elsewhere), float32, float64 or bfloat16
    max_tokens  longest path that is scored; None for what model and format allow
    kv_mib      budget of the prefix cache, in MiB
    group       the group of settings it is made from, for errors

    Building one checks the knobs and nothing else. Raises: ValueError naming the knob.
    """

    def __init__(
        self,
        *,
        adapter: Adapter,
        path: str,
        device: str = "auto",
        dtype: str = "auto",
        max_tokens: int | None = None,
        kv_mib: int = 1024,
        group: str = "scorer",
    ) -> None:
        if not isinstance(path, str) or not path.strip():
            raise ValueError(f"path must be a folder, a hub id or bundled:NAME, got {path!r}")
        if not isinstance(device, str) or not DEVICES.fullmatch(device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
        if max_tokens is not None and not is_count(max_tokens, at_least=1):
            raise ValueError(f"max_tokens must be an int >= 1 or null, got {max_tokens!r}")
        if not is_count(kv_mib, at_least=1):
            raise ValueError(f"kv_mib must be an int >= 1, got {kv_mib!r}")
        self.adapter = adapter
        self.path = path
        self.device = device
        self.dtype = dtype
        self.max_tokens = max_tokens
        self.kv_mib = kv_mib
        self.group = group
        self._loaded: Loaded | None = None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Where the model is, looked up once. Raises: ValueError if it is missing or not of this adapter's kind."""
        return find_reward_model(self.path, self.adapter, self.group)

    def check(self) -> None:
        """Reads config.json only. Raises: ValueError if that is missing, of another kind, or names no limit."""
        token_limit(self.checkpoint, self.adapter, self.max_tokens, self.group)

    def check_writer(self, writer: Checkpoint) -> None:
        """Finds out early, from the two tokenizer.json, what `load` finds out in any case from the tokenizers: that
        they agree, where they must. Raises: as `check`, and ValueError if they do not."""
        if self.adapter.shares_tokens:
            ours, writers = read_vocabulary(self.checkpoint.source), read_vocabulary(writer.source)
            if ours is not None and writers is not None:
                check_same_vocabulary(f"{self.group}.path={self.path}", ours, writers)

    def load(self, writer: Any = None) -> None:
        """Loads tokenizer and weights, once; see `base.Scorer`. *Mutates* the scorer. Raises: as `check`, and
        ValueError if tokenizer, weights or writer are not what the adapter needs."""
        if self._loaded is None:
            self._loaded = self._open(writer)
        else:
            self._check_tokenizers(self._loaded.tokenizer, writer)

    def _check_tokenizers(self, ours: Any, writer: Any) -> None:
        if writer is not None and self.adapter.shares_tokens:
            check_same_vocabulary(f"{self.group}.path={self.path}", ours.get_vocab(), writer.get_vocab())

    def _open(self, writer: Any) -> Loaded:
        self.check()
        checkpoint = self.checkpoint
        tokenizer = load_tokenizer(checkpoint.source)
        self._check_tokenizers(tokenizer, writer)
        form, words = self.adapter.format(tokenizer), self.adapter.words(tokenizer)
        reader, room = self._open_reader(checkpoint, tokenizer, words)
        limit = token_limit(checkpoint, self.adapter, self.max_tokens, self.group)
        limit = limit if room is None else min(limit, room)
        return Loaded(checkpoint, tokenizer, form, reader, limit)

    def _open_reader(self, checkpoint: Checkpoint, tokenizer: Any, words: Tokens) -> tuple[OpenReader, int | None]:
        """The reader, and the longest sequence it has room for, if it knows; `words` as in `base.Adapter`."""
        from reason.scorers.local_reader import open_reader

        del tokenizer
        return open_reader(
            checkpoint.source, self.adapter.head, words, device=self.device, dtype=self.dtype, kv_mib=self.kv_mib
        )

    def close(self) -> None:
        """Lets go of the weights and ends the reader. *Mutates* the scorer."""
        if self._loaded is not None:
            self._loaded.reader.close()
            self._loaded = None

    @property
    def loaded(self) -> Loaded:
        """The loaded parts; loads them if need be."""
        if self._loaded is None:
            self.load()
        assert self._loaded is not None
        return self._loaded

    def bind(self, question: str, prompt: Tokens) -> BoundPrm:
        """See `base.Scorer`."""
        parts = self.loaded
        return BoundPrm(reader=parts.reader, form=parts.form, limit=parts.limit, question=question, prompt=prompt)
