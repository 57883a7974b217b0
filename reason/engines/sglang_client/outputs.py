"""A head's outputs over given tokens, in SGLang's words: a request as JSON, and the JSON of a reply as an array. Pure.

A server tells how likely certain tokens were after every token of a prompt, and takes what comes before `start` from
its cache. That is all a reward model's head needs: of two words it is their log-probabilities, whose difference is that
of their logits; a head with outputs of its own is served as a model of two words (`decoding/sglang_plugin/models`).

Outputs `[len(tokens) - start, outputs]`, one row after each token from `start` on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decoding.core import Tokens
from reason.engines.sglang_client.errors import Lost

Outputs = npt.NDArray[np.float32]


class Outcome(Protocol):
    """What is asked of a server for one kind of head, and where in its reply the outputs are."""

    def body(self, tokens: Tokens, start: int, rid: str) -> dict[str, Any]:
        """Of POST /generate."""
        ...

    def outputs(self, reply: Any, count: int) -> Outputs:
        """`[count, outputs]`. Raises: Lost where the reply is not whole."""
        ...


@dataclass(frozen=True)
class TwoWords:
    """The log-probabilities of `words`."""

    words: Tokens

    def body(self, tokens: Tokens, start: int, rid: str) -> dict[str, Any]:
        return _body(tokens, start, rid) | {"token_ids_logprob": list(self.words)}

    def outputs(self, reply: Any, count: int) -> Outputs:
        """The reply begins with a null for the token at `start`; what follows the last token is its output."""
        rows = _rows(reply, "token_ids_logprobs", count, after=True)
        try:
            pairs: Outputs = np.array([[entry[0] for entry in row] for row in rows], np.float32)
        except (TypeError, IndexError, ValueError) as error:
            raise Lost(f"the reply's log-probabilities are not whole: {error}") from error
        if pairs.shape != (count, 2):
            raise Lost(f"{count} pairs of log-probabilities were asked for, and an array of shape {pairs.shape} came")
        return pairs


@dataclass(frozen=True, kw_only=True)
class Head(TwoWords):
    """The outputs of a head that is served as a model of two words; one output is their difference."""

    count: int
    words: Tokens = (0, 1)

    def outputs(self, reply: Any, count: int) -> Outputs:
        pairs = super().outputs(reply, count)
        return pairs[:, :1] - pairs[:, 1:] if self.count == 1 else pairs

    def served(self, reply: Any) -> bool:
        """Whether no other word could come, as with such a head and with no language model."""
        return math.isclose(np.exp(super().outputs(reply, 1)).sum(), 1.0, abs_tol=1e-3)


@dataclass(frozen=True)
class Expected:
    """log(p(token) / max p) of every token, see `reason.scorers.formats.expectation`; `start` must be at least 1."""

    def body(self, tokens: Tokens, start: int, rid: str) -> dict[str, Any]:
        return _body(tokens, start - 1, rid) | {"top_logprobs_num": 1}

    def outputs(self, reply: Any, count: int) -> Outputs:
        own = _rows(reply, "token_logprobs", count, after=False)
        best = _rows(reply, "top_logprobs", count, after=False)
        try:
            return np.array([[mine[0] - top[0][0]] for mine, top in zip(own, best, strict=True)], np.float32)
        except (TypeError, IndexError) as error:
            raise Lost(f"the reply's log-probabilities are not whole: {error}") from error


def _body(tokens: Tokens, start: int, rid: str) -> dict[str, Any]:
    return {
        "rid": rid,
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": start,
        "stream": False,
    }


def _rows(reply: Any, name: str, count: int, *, after: bool) -> Sequence[Any]:
    """The last `count` entries, of the prompt alone or with what would follow it. Raises: Lost."""
    try:
        meta = reply["meta_info"]
        rows: list[Any] = meta[f"input_{name}"][1:] + (meta[f"output_{name}"][:1] if after else [])
    except (KeyError, TypeError) as error:
        raise Lost(f"the reply has no log-probabilities of its input: {type(error).__name__} {error}") from error
    if len(rows) != count or None in rows:
        raise Lost(f"{count} rows of log-probabilities were asked for and {len(rows)} came")
    return rows
