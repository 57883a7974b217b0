"""A process reward model as a scorer: any adapter, any checkpoint that it reads, loaded once and late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from decoding.core import Tokens
from decoding.model.backend import NUMERICS_CHOICES
from decoding.model.numerics import pick_invariant_path, require_invariant_model, require_invariant_settings
from decoding.validation import require_choice, require_count
from reason.models.checkpoint import Checkpoint, find_model, load_tokenizer, read_vocabulary
from reason.models.devices import check_device_name, require_device
from reason.models.tokenizer import PretrainedTokenizer, describe_difference
from reason.scorers.base import PrmAdapter, StepFormat
from reason.scorers.heads import ClosableReader
from reason.scorers.incremental import IncrementalScorer
from reason.scorers.read_limit import ReadLimit, find_read_limit, least
from search.strategy import StepScorer
from search.voting import validate_aggregation

if TYPE_CHECKING:
    from reason.engines.http.settings import ServerSettings

DTYPES = ("auto", "float32", "float64", "bfloat16")


@dataclass(frozen=True)
class LoadedPrm:
    """A loaded reward model; paths beyond its limit are not scored.

    step_format  None for one that reads whole solutions
    """

    checkpoint: Checkpoint
    tokenizer: PretrainedTokenizer
    step_format: StepFormat | None
    reader: ClosableReader
    limit: ReadLimit


class PrmScorer:
    """Scores steps with the reward model at `path`, in the format of `adapter`.

    path        a folder, a hub id, or bundled:NAME
    device      auto (CUDA if there is one), cpu, cuda, cuda:1, ...
    dtype       auto (float32 on CPU, bfloat16 elsewhere), float32, float64 or bfloat16
    numerics    invariant: a path has the same bits of its scores whatever else is read with it, as of engine.numerics;
                fast: they may differ by rounding
    max_tokens  longest path that is scored; None for the limit of model and format
    kv_mib      size of the prefix cache, in MiB
    agg_strategy  how its step scores become the score of a path: the default of search.agg_strategy in searches over
                steps. `last` where a score is that of the path so far, `min` where it is that of a step alone
    group       the group of settings it is made from, for errors

    Making one checks the knobs and nothing else. Raises: ValueError naming the knob.
    """

    gives_scores: ClassVar[bool] = True
    judges_solutions: ClassVar[bool] = True
    num_top: ClassVar[int] = 0

    def __init__(
        self,
        *,
        adapter: PrmAdapter,
        path: str,
        device: str = "auto",
        dtype: str = "auto",
        numerics: str = "fast",
        max_tokens: int | None = None,
        kv_mib: int = 1024,
        agg_strategy: str = "last",
        group: str = "scorer",
    ) -> None:
        if not isinstance(path, str) or not path.strip():
            raise ValueError(f"path must be a folder, a hub id or bundled:NAME, got {path!r}")
        check_device_name(device)
        require_choice("dtype", dtype, DTYPES)
        require_choice("numerics", numerics, NUMERICS_CHOICES)
        if numerics == "invariant":
            require_invariant_settings("auto", "auto", dtype)
        require_count("max_tokens", max_tokens, at_least=1, or_null=True)
        require_count("kv_mib", kv_mib, at_least=1)
        validate_aggregation(agg_strategy)
        self.adapter = adapter
        self.path = path
        self.device = device
        self.dtype = dtype
        self.numerics = numerics
        self.max_tokens = max_tokens
        self.kv_mib = kv_mib
        self.agg_strategy = agg_strategy
        self.group = group
        self._loaded: LoadedPrm | None = None

    @property
    def servers(self) -> ServerSettings | None:
        """See `base.Scorer`."""
        return None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint, looked up once. Raises: ValueError if it is missing or not of this adapter's kind."""
        return find_reward_model(self.path, self.adapter, self.group)

    def validate(self) -> None:
        """Reads config.json only. Raises: ValueError if it is missing, of another kind, or names no limit; or for a
        device that is not there."""
        try:
            require_device(self.device)
            self._require_numerics()
        except ValueError as error:
            raise ValueError(f"{self.group}.{error}") from error
        find_read_limit(self.checkpoint, self.adapter, self.max_tokens, self.group)

    def _require_numerics(self) -> None:
        if self.numerics == "invariant" and self.servers is None:
            # here: it imports torch
            from decoding.model.device_choice import pick_device, pick_dtype

            require_invariant_model(self.checkpoint.config)
            device = pick_device(self.device)
            pick_invariant_path("auto", "auto", device, pick_dtype(self.dtype, device))

    def validate_writer(self, writer: Checkpoint) -> None:
        """Compares the two tokenizer.json, where they are at hand and ids are shared; `load` compares the tokenizers.

        Raises: as `validate`, and ValueError if they differ.
        """
        if self.adapter.shares_tokens:
            vocabulary, writer_vocabulary = read_vocabulary(self.checkpoint.source), read_vocabulary(writer.source)
            if vocabulary is not None and writer_vocabulary is not None:
                require_writer_vocabulary(f"{self.group}.path={self.path}", vocabulary, writer_vocabulary)

    def load(self, writer: PretrainedTokenizer | None = None) -> None:
        """Loads tokenizer and weights, once; see `base.Scorer`. *Mutates* the scorer.

        Raises: as `validate`, and ValueError if tokenizer, weights or writer lack what the adapter needs.
        """
        if self._loaded is None:
            self._loaded = self._load(writer)
        else:
            self._compare_tokenizers(self._loaded.tokenizer, writer)

    def _compare_tokenizers(self, tokenizer: PretrainedTokenizer, writer: PretrainedTokenizer | None) -> None:
        if writer is not None and self.adapter.shares_tokens:
            require_writer_vocabulary(f"{self.group}.path={self.path}", tokenizer.get_vocab(), writer.get_vocab())

    def _load(self, writer: PretrainedTokenizer | None) -> LoadedPrm:
        self.validate()
        checkpoint = self.checkpoint
        tokenizer = load_tokenizer(checkpoint.source)
        self._compare_tokenizers(tokenizer, writer)
        step_format, label_token_ids = self._build_format(tokenizer), self.adapter.label_token_ids(tokenizer)
        reader, reader_limit = self._open_reader(checkpoint, tokenizer, label_token_ids)
        limit = find_read_limit(checkpoint, self.adapter, self.max_tokens, self.group)
        limit = limit if reader_limit is None else least([limit, reader_limit])
        return LoadedPrm(checkpoint, tokenizer, step_format, reader, limit)

    def _build_format(self, tokenizer: PretrainedTokenizer) -> StepFormat | None:
        return self.adapter.build_format(tokenizer)

    def _open_reader(
        self, checkpoint: Checkpoint, tokenizer: PretrainedTokenizer, label_token_ids: Tokens
    ) -> tuple[ClosableReader, ReadLimit | None]:
        """Returns the reader, and its limit, if it knows one."""
        from reason.scorers.local_reader import open_local_reader

        del tokenizer
        opened = open_local_reader(
            checkpoint.source,
            self.adapter.head,
            label_token_ids,
            device=self.device,
            dtype=self.dtype,
            kv_mib=self.kv_mib,
            numerics=self.numerics,
        )
        setting = f"{self.group}.kv_mib"
        limits = (
            ReadLimit.from_model(opened.max_positions, "its max_position_embeddings", self.group),
            ReadLimit(opened.num_slots, f"{setting}={self.kv_mib}", f"raise {setting}", self.group),
        )
        return opened.reader, least(limits)

    def close(self) -> None:
        """Frees the weights and closes the reader. *Mutates* the scorer."""
        if self._loaded is not None:
            self._loaded.reader.close()
            self._loaded = None

    @property
    def loaded_prm(self) -> LoadedPrm:
        """The loaded model; loads it if `load` was not called."""
        if self._loaded is None:
            self.load()
        assert self._loaded is not None
        return self._loaded

    def bind(self, question: str, prompt: Tokens) -> StepScorer:
        """See `base.Scorer`."""
        prm = self.loaded_prm
        assert prm.step_format is not None
        return IncrementalScorer(
            reader=prm.reader,
            step_format=prm.step_format,
            limit=prm.limit,
            question=question,
            prompt=prompt,
        )


def require_writer_vocabulary(
    setting: str, vocabulary: Mapping[str, int], writer_vocabulary: Mapping[str, int]
) -> None:
    """Raises ValueError if the reward model of `setting` and the writing model give different ids to a token."""
    if difference := describe_difference(vocabulary, writer_vocabulary):
        raise ValueError(
            f"{setting} reads the writer's token ids, but its vocabulary is another one than that of model.path "
            f"({difference}); choose a model of the same vocabulary or, to score, one that reads text "
            "(scorer=qwen_prm, skywork_prm, token_classification, ...), or scorer=likelihood"
        )


def find_reward_model(path: str, adapter: PrmAdapter, group: str) -> Checkpoint:
    """Returns the checkpoint called `path`, see `find_model`; of it only config.json is read.

    `group` is the group of settings that errors name. Raises: ValueError if it is missing, or naming the valid
    architectures if the adapter cannot read its own.
    """
    checkpoint = find_model(path, key=f"{group}.path")
    architecture = checkpoint.architecture or "model without a named architecture"
    if architecture not in adapter.architectures:
        raise ValueError(
            f"{group}.path={path} is a {architecture}, but {type(adapter).__name__} reads "
            f"{', '.join(adapter.architectures)}; choose another {group} or another {group}.path"
        )
    return checkpoint
