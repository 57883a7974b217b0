"""Queries for the outputs of a reward model's head: the JSON of a request, and its reply as an array. Pure.

A server returns log-probabilities of chosen tokens after every token of a prompt, and takes what comes before `start`
from its cache. All heads are read this way: the head of two label tokens is their log-probabilities, whose difference
is that of their logits; a head with its own outputs is served as a model of two tokens
(`decoding/sglang_plugin/models`).

Outputs are `[len(tokens) - start, outputs]`, one row after each token from `start` on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from decoding.core import HeadOutputs, Tokens
from reason.engines.http.errors import ResponseLost, treat_as_lost
from reason.engines.http.plausible import read_logprob
from reason.engines.sglang_client.wire import JsonBody, LogprobEntry, build_prefill_body

LogprobRow = Sequence[LogprobEntry]


class HeadQuery(Protocol):
    """The request for one kind of head, and where its outputs are in the reply."""

    def build_body(self, tokens: Tokens, start: int, request_id: str) -> JsonBody:
        """Returns the body of POST /generate."""
        ...

    def parse_outputs(self, reply: object, count: int) -> HeadOutputs:
        """Returns `[count, outputs]`. Raises: ResponseLost where the reply is incomplete."""
        ...


@dataclass(frozen=True)
class LabelTokensQuery:
    """Asks for the log-probabilities of two label tokens, such as + and -."""

    label_token_ids: Tokens

    def build_body(self, tokens: Tokens, start: int, request_id: str) -> JsonBody:
        """See `HeadQuery`."""
        return build_prefill_body(tokens, start, request_id) | {"token_ids_logprob": list(self.label_token_ids)}

    def parse_outputs(self, reply: object, count: int) -> HeadOutputs:
        """See `HeadQuery`."""
        # Row i of the input belongs to what precedes token i; the row after the last token is the output's first.
        rows = cast(Sequence[LogprobRow], _last_rows(reply, "token_ids_logprobs", count, with_output=True))
        with treat_as_lost("one with log-probabilities of its input"):
            pairs: HeadOutputs = np.array([[read_logprob(entry[0]) for entry in row] for row in rows], np.float32)
        if pairs.shape != (count, 2):
            raise ResponseLost(
                f"{count} pairs of log-probabilities were asked for, and an array of shape {pairs.shape} came"
            )
        return pairs


@dataclass(frozen=True, kw_only=True)
class RewardHeadQuery(LabelTokensQuery):
    """Asks for the outputs of a head that is served as a model of two tokens; one output is their difference."""

    num_outputs: int
    label_token_ids: Tokens = (0, 1)

    def parse_outputs(self, reply: object, count: int) -> HeadOutputs:
        """See `HeadQuery`."""
        pairs = super().parse_outputs(reply, count)
        return pairs[:, :1] - pairs[:, 1:] if self.num_outputs == 1 else pairs

    def is_from_head(self, reply: object) -> bool:
        """Returns whether the two tokens have all probability, as with such a head and with no language model."""
        return math.isclose(np.exp(super().parse_outputs(reply, 1)).sum(), 1.0, abs_tol=1e-3)


@dataclass(frozen=True)
class ExpectationQuery:
    """Asks for log(p(token) / max p) of every token (`reason.scorers.formats.expectation`); `start` is at least 1."""

    def build_body(self, tokens: Tokens, start: int, request_id: str) -> JsonBody:
        """See `HeadQuery`."""
        return build_prefill_body(tokens, start - 1, request_id) | {"top_logprobs_num": 1}

    def parse_outputs(self, reply: object, count: int) -> HeadOutputs:
        """See `HeadQuery`."""
        chosen = cast(Sequence[LogprobEntry], _last_rows(reply, "token_logprobs", count, with_output=False))
        best = cast(Sequence[LogprobRow], _last_rows(reply, "top_logprobs", count, with_output=False))
        with treat_as_lost("one with log-probabilities of its input"):
            pairs = [(read_logprob(entry[0]), read_logprob(top[0][0])) for entry, top in zip(chosen, best, strict=True)]
            return np.array([[logprob - highest] for logprob, highest in pairs], np.float32)


def _last_rows(reply: object, name: str, count: int, *, with_output: bool) -> Sequence[object]:
    """Returns the last `count` rows of the prompt, or of the prompt and the next token. Raises: ResponseLost."""
    with treat_as_lost("one with log-probabilities of its input"):
        meta = cast(Mapping[str, Mapping[str, list[object]]], reply)["meta_info"]
        rows = meta[f"input_{name}"][1:] + (meta[f"output_{name}"][:1] if with_output else [])
    if len(rows) != count or None in rows:
        raise ResponseLost(f"{count} rows of log-probabilities were asked for and {len(rows)} came")
    return rows
