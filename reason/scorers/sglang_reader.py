"""A reward model that SGLang servers hold, as a scorer: its input is made here, its outputs are asked for there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from decoding.core import Tokens
from reason.config.compose import make, member
from reason.engines.sglang_client.settings import Servers
from reason.models.checkpoint import Checkpoint
from reason.scorers.base import Adapter, HeadKind
from reason.scorers.incremental import BoundPrm
from reason.scorers.prm import OpenReader, PrmScorer

if TYPE_CHECKING:
    from reason.engines.sglang_client.outputs import Outcome

HEADS: dict[HeadKind, int] = {"process_reward": 2, "token_classes": 2, "step_value": 1}
"""Outputs of the heads that SGLang serves with classes of ours."""


def form_of(name: str) -> PrmScorer:
    """The member of conf/scorer called `name`. Raises: ValueError if it is not a reward model in this process."""
    made = make("format", member("scorer", name))
    if not isinstance(made, PrmScorer) or isinstance(made, ServedPrm):
        raise ValueError(f"format must be a reward model of conf/scorer (prm, qwen_prm, ...), got {name!r}")
    return made


class ServedPrm(PrmScorer):
    """Scores steps with a reward model on SGLang servers, as the scorer called `format` would in this process.

    format      a member of conf/scorer
    urls        of servers that all hold the model, or of a router in front of them
    path        the checkpoint, of which config.json and tokenizer are read; None for that of the format
    max_tokens  longest path that is scored; None for what model, format and servers allow
    adapter     how the model is read; None for that of the format
    group       see `PrmScorer`

    The others are those of `sglang_client.settings.Servers`. Building one checks the knobs and asks no server.
    Raises: ValueError naming the knob.
    """

    def __init__(
        self,
        *,
        format: str = "prm",
        urls: Sequence[str] | str,
        path: str | None = None,
        max_tokens: int | None = None,
        adapter: Adapter | None = None,
        request_timeout_s: float = 600.0,
        patience_s: float = 120.0,
        most: int = 256,
        losses: int = 3,
        group: str = "scorer",
    ) -> None:
        form = form_of(format)
        self.servers = Servers(
            urls=urls, request_timeout_s=request_timeout_s, patience_s=patience_s, most=most, losses=losses
        )
        at_most = form.max_tokens if max_tokens is None else max_tokens
        path = form.path if path is None else path
        super().__init__(adapter=adapter or form.adapter, path=path, max_tokens=at_most, group=group)

    def check(self) -> None:
        """See `PrmScorer.check`. Raises: ValueError where a package is missing, too."""
        super().check()
        self.servers.check()
        outcome_of(self.adapter.head, ())

    def _open_reader(self, checkpoint: Checkpoint, tokenizer: Any, words: Tokens) -> tuple[OpenReader, int | None]:
        from reason.engines.sglang_client.reader import RemoteReader

        vocab_size = checkpoint.vocab_size or max(tokenizer.get_vocab().values()) + 1
        outcome = outcome_of(self.adapter.head, words)
        reader = RemoteReader(self.servers.client(), outcome, vocab_size=vocab_size, tokenizer=tokenizer)
        return reader, reader.room

    def bind(self, question: str, prompt: Tokens) -> BoundPrm:
        """See `base.Scorer`; a problem is at home with one of the servers."""
        from reason.engines.sglang_client.reader import AtHome, RemoteReader

        parts = self.loaded
        assert isinstance(parts.reader, RemoteReader)
        reader = AtHome(parts.reader, question)
        return BoundPrm(reader=reader, form=parts.form, limit=parts.limit, question=question, prompt=prompt)


def outcome_of(head: HeadKind, words: Tokens) -> Outcome:
    """What is asked of a server for this kind of head. Raises: ValueError if it cannot tell that."""
    from reason.engines.sglang_client.outputs import Expected, Head, TwoWords

    if head in HEADS:
        return Head(count=HEADS[head])
    if head == "two_words":
        return TwoWords(words)
    if head == "next_token":
        return Expected()
    raise ValueError(f"adapter: a server does not tell {head}; choose a scorer in this process")
