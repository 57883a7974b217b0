"""Has a language model read a running thought part by part: does a part have an answer, and which the part before had?

The verifier of TrimR (arXiv 2505.17155). It reads copies of the text, so the thought goes on as without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from decoding.core import Usage
from search.templates import Places, fill_template

TEMPLATES = {
    "answer": Places(("part",), ("question",)),
    "same": Places(("former", "latter"), ("question",)),
}
"""Requests to a verifier: whether a part has an answer, and whether two parts have the same one."""


class PartVerdict(NamedTuple):
    """The reply to a request for yes or no; None: it said neither, or was not asked."""

    is_yes: bool | None
    usage: Usage


class AskVerdict(Protocol):
    """Asks a language model for yes or no."""

    async def __call__(self, request: str, *, max_tokens: int, deadline: float | None) -> PartVerdict:
        """Returns the verdict, written in at most `max_tokens`; `deadline` as in `GenerationRequest`."""
        ...


class PartReading(NamedTuple):
    """What a verifier read in a part of a thought.

    has_answer  whether it has an answer; None: the verifier did not say
    is_same     whether that is the answer of the part before; None: it did not say, or there was nothing to compare
    """

    has_answer: bool | None
    is_same: bool | None
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class PartVerifier:
    """Reads the thoughts of one problem.

    templates   texts of the requests, see `TEMPLATES`
    max_tokens  of each verdict; a part has at most two
    """

    ask: AskVerdict
    question: str
    templates: Mapping[str, str]
    max_tokens: int

    async def read_part(self, part: str, before: str | None, deadline: float | None) -> PartReading:
        """Returns what is in a part; `before` is the one before it where that has an answer, else None."""
        has_answer, usage = await self._ask("answer", deadline, part=part)
        if not has_answer or before is None:
            return PartReading(has_answer, None, usage)
        is_same, more = await self._ask("same", deadline, former=before, latter=part)
        return PartReading(has_answer, is_same, usage + more)

    async def _ask(self, template: str, deadline: float | None, **parts: str) -> PartVerdict:
        texts = {name: text.strip() for name, text in parts.items()}
        request = fill_template(self.templates[template], question=self.question, **texts)
        return await self.ask(request, max_tokens=self.max_tokens, deadline=deadline)
