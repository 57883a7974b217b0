"""Assembles a streamed reply of /generate. Pure."""

from __future__ import annotations

from typing import cast

from decoding.core import Tokens
from reason.engines.http.errors import ResponseLost, treat_as_lost
from reason.engines.http.plausible import read_count
from reason.engines.sglang_client.wire import (
    GenerateJson,
    GenerateResponse,
    parse_generate_response,
    parse_output,
)


class GenerateStream:
    """Adds up the events of a stream. Each has all tokens so far, or the new ones with --incremental-streaming-output.

    tokens  what has come so far

    >>> stream = GenerateStream(vocab_size=9, max_tokens=4, prefix_length=1)
    >>> for ids, total in (([5], 1), ([5, 6], 2), ([7], 3)):  # the last one has the new token only
    ...     entries = [[-1.0, i, None] for i in ids]
    ...     meta = {"finish_reason": None, "completion_tokens": total, "output_token_logprobs": entries}
    ...     stream.add_event({"output_ids": ids, "meta_info": meta})
    False
    False
    False
    >>> stream.tokens, stream.build_partial().reason
    ((5, 6, 7), 'abort')
    """

    def __init__(self, *, vocab_size: int, max_tokens: int, prefix_length: int, num_top: int = 0) -> None:
        self._vocab_size, self._max_tokens = vocab_size, max_tokens
        self._prefix_length, self._num_top = prefix_length, num_top
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._top_logprobs: list[tuple[float, ...]] = []
        self._last: GenerateJson | None = None

    @property
    def tokens(self) -> Tokens:
        return tuple(self._tokens)

    @property
    def num_tokens(self) -> int:
        """How many tokens have come so far."""
        return len(self._tokens)

    def add_event(self, event: object) -> bool:
        """Returns whether the generation is at its end. *Mutates*.

        Raises: ResponseLost where the event does not follow those before.
        """
        with treat_as_lost("an event of /generate"):
            reply = cast(GenerateJson, event)
            length, known = len(reply["output_ids"]), self.num_tokens
            total = read_count(reply["meta_info"].get("completion_tokens"), self._max_tokens)
            if total is None or total not in (length, known + length) or total < known:
                raise ResponseLost(f"a stream of {known} tokens goes on with {length} and says that they are {total}")
            start = known if total == length else 0
            tokens, logprobs, top_logprobs = parse_output(reply, self._vocab_size, self._num_top, start)
            self._tokens += tokens
            self._logprobs += logprobs
            self._top_logprobs += top_logprobs
            self._last = reply
            return reply["meta_info"].get("finish_reason") is not None

    @property
    def is_finished(self) -> bool:
        """Whether an event has said what ended the generation."""
        return self._last is not None and self._last["meta_info"].get("finish_reason") is not None

    def build_response(self) -> GenerateResponse:
        """Returns the whole reply. Raises: ResponseLost where the stream broke off."""
        if self._last is None or not self.is_finished:
            raise ResponseLost("the stream broke off")
        return self._build(self._last["meta_info"]["finish_reason"])

    def build_partial(self) -> GenerateResponse | None:
        """Returns what has come of a stream that broke off, as a reply that was aborted; None without a token."""
        return self._build({"type": "abort"}) if self._tokens else None

    def _build(self, finish: object) -> GenerateResponse:
        assert self._last is not None, "a stream with tokens had an event"
        whole = {
            "output_ids": self._tokens,
            "meta_info": {
                **self._last["meta_info"],
                "finish_reason": finish,
                "output_token_logprobs": [(value,) for value in self._logprobs],
                "output_top_logprobs": [[(value,) for value in row] for row in self._top_logprobs],
            },
        }
        return parse_generate_response(
            whole,
            vocab_size=self._vocab_size,
            max_tokens=self._max_tokens,
            prefix_length=self._prefix_length,
            num_top=self._num_top,
        )
