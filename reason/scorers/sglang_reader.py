"""Scores steps with a reward model on SGLang servers: inputs are encoded here, the head's outputs come from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding.core import Tokens
from reason.config.compose import instantiate, load_option
from reason.engines.sglang_client.settings import SGLangSettings
from reason.models.checkpoint import Checkpoint
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.base import PrmAdapter
from reason.scorers.heads import ClosableReader
from reason.scorers.incremental import IncrementalScorer
from reason.scorers.prm import PrmScorer
from reason.scorers.read_limit import ReadLimit


def load_local_scorer(name: str) -> PrmScorer:
    """Returns the option of conf/scorer called `name`. Raises: ValueError unless it is a model in this process."""
    scorer = instantiate("format", load_option("scorer", name))
    if not isinstance(scorer, PrmScorer) or scorer.servers is not None:
        raise ValueError(f"format must be a reward model of conf/scorer (prm, qwen_prm, ...), got {name!r}")
    return scorer


class SglangPrmScorer(PrmScorer):
    """Scores steps with a reward model on SGLang servers, as the scorer called `format` does in this process.

    format      an option of conf/scorer
    urls        of servers that all serve the model, or of a router in front of them
    path        the checkpoint, of which config.json and tokenizer are read; None for that of the format
    max_tokens  longest path that is scored; None for the limit of model, format and servers
    adapter     how the model is read; None for that of the format
    group, agg_strategy  see `PrmScorer`; conf/scorer/sglang_prm.yaml gives that of the format

    The other settings are the fields of `SGLangSettings`. Making one checks the knobs and contacts no server.
    Raises: ValueError naming the knob.
    """

    def __init__(
        self,
        *,
        format: str = "prm",
        urls: Sequence[str] | str,
        path: str | None = None,
        max_tokens: int | None = None,
        adapter: PrmAdapter | None = None,
        group: str = "scorer",
        agg_strategy: str = "last",
        **server_settings: Any,
    ) -> None:
        local = load_local_scorer(format)
        self._servers = SGLangSettings(urls=urls, **server_settings)
        super().__init__(
            adapter=adapter or local.adapter,
            path=local.path if path is None else path,
            max_tokens=local.max_tokens if max_tokens is None else max_tokens,
            group=group,
            agg_strategy=agg_strategy,
        )

    @property
    def servers(self) -> SGLangSettings:
        """See `base.Scorer`."""
        return self._servers

    def validate(self) -> None:
        """See `PrmScorer.validate`. Raises: ValueError also where a package is missing or servers lack the head."""
        super().validate()
        self.servers.require_packages()
        self.adapter.head.build_query(())

    def _open_reader(
        self, checkpoint: Checkpoint, tokenizer: PretrainedTokenizer, label_token_ids: Tokens
    ) -> tuple[ClosableReader, ReadLimit | None]:
        from reason.engines.sglang_client.reader import SGLangReader

        vocab_size = checkpoint.vocab_size or max(tokenizer.get_vocab().values()) + 1
        query = self.adapter.head.build_query(label_token_ids)
        reader = SGLangReader(self.servers.open_dispatcher(), query, vocab_size=vocab_size, tokenizer=tokenizer)
        if reader.max_tokens is None:
            return reader, None
        source = f"max_req_input_len of the servers at {self.group}.urls"
        remedy = "start them with a longer --context-length or more KV memory"
        return reader, ReadLimit(reader.max_tokens, source, remedy, self.group)

    def bind(self, question: str, prompt: Tokens) -> IncrementalScorer:
        """See `base.Scorer`; the requests of one problem go to the same server."""
        from reason.engines.sglang_client.reader import SessionAffinity, SGLangReader

        prm = self.loaded_prm
        assert isinstance(prm.reader, SGLangReader)
        assert prm.step_format is not None
        return IncrementalScorer(
            reader=SessionAffinity(prm.reader, question),
            step_format=prm.step_format,
            limit=prm.limit,
            question=question,
            prompt=prompt,
        )
