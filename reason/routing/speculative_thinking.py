"""Lets the target model write where a small model reflects or verifies: Speculative Thinking (arXiv 2504.12329)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import Generation
from decoding.validation import require_count, require_text
from reason.routing.handover import HandoverRouter, Review, Turn

DOUBTS = ("wait", "alternatively", "hmm", "but", "however", "let me think", "maybe", "actually")
VERIFYING = ("verify", "check", "double-check", "make sure", "confirm")
_REST = 1 << 20  # tokens: to the end of the paragraph


@dataclass(frozen=True, kw_only=True)
class SpeculativeThinkingRouter(HandoverRouter):
    """At each paragraph the small model's first tokens decide.

    Where they hold a cue the target model writes them anew, and goes on where they verify. After many paragraphs of
    doubt a recap is put in, and the target model writes on from it. The small model writes the rest.

    look_tokens      first tokens of a paragraph, which the target model writes anew after a cue
    verify_tokens    tokens that it writes where they verify
    doubts, doubts_step, most_doubts   paragraphs with a doubt before a recap; grows with each one up to the most
    recap_tokens, recap_step, most_recap_tokens   tokens that the target model writes after a recap; likewise
    recap            text that is put in
    cues, verifying  words or phrases of doubt and of verification, case ignored; both are cues
    delimiter        ends a paragraph

    Numbers are the paper's; its classifier of sentiment is a list of words here. A solution is read from its
    beginning, so that requests for single steps decide as one for the whole; a stretch then ends with its step.
    """

    look_tokens: int = 20
    verify_tokens: int = 125
    doubts: int = 15
    doubts_step: int = 5
    most_doubts: int = 30
    recap_tokens: int = 125
    recap_step: int = 25
    most_recap_tokens: int = 200
    recap: str = "Let me look at what I have so far, and whether a step of it is wrong.\n\n"
    cues: tuple[str, ...] = DOUBTS
    verifying: tuple[str, ...] = VERIFYING
    delimiter: str = "\n\n"

    def __post_init__(self) -> None:
        for name in ("look_tokens", "verify_tokens", "doubts", "most_doubts", "recap_tokens", "most_recap_tokens"):
            require_count(name, getattr(self, name), at_least=1)
        for name in ("doubts_step", "recap_step"):
            require_count(name, getattr(self, name))
        for name in ("recap", "delimiter"):
            require_text(name, getattr(self, name))
            if not getattr(self, name).strip(" "):
                raise ValueError(f"{name} must not be empty")
        for name in ("cues", "verifying"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not all(isinstance(cue, str) and cue.strip() for cue in getattr(self, name)):
                raise ValueError(f"{name} must hold words, got {list(getattr(self, name))!r}")

    def start(self, path_text: str) -> _Paragraphs:
        """See `HandoverRouter`."""
        return _Paragraphs(self, path_text)

    def has_cue(self, text: str) -> bool:
        """Returns whether a text has a word of doubt or of verification."""
        return _has_word(text, (*self.cues, *self.verifying))

    def verifies(self, text: str) -> bool:
        """Returns whether a text has a word of verification."""
        return _has_word(text, self.verifying)


class _Paragraphs:
    """Implements `handover.Handover`; `_written` is the solution up to the present turn."""

    def __init__(self, router: SpeculativeThinkingRouter, written: str) -> None:
        self._router, self._written = router, written

    def begin(self) -> Turn:
        """See `Handover`. A request may begin inside a paragraph, whose rest is then the small model's."""
        if self._written and not self._written.endswith(self._router.delimiter):
            return self._write_rest()
        return self._begin_paragraph()

    def review_turn(self, generation: Generation, text: str) -> Review:
        """See `Handover`."""
        router, num_tokens = self._router, len(generation.tokens)
        paragraph = self._written.rpartition(router.delimiter)[2]
        if self._turn.author == "draft" and self._is_look and router.has_cue(paragraph + text):
            limit = router.verify_tokens if router.verifies(paragraph + text) else router.look_tokens
            return Review(0, self._set(Turn("target", limit, (router.delimiter,))), 1.0)
        self._written += text
        if self._written.endswith(router.delimiter):
            return Review(num_tokens, self._begin_paragraph(), 0.0)
        return Review(num_tokens, self._write_rest(), 0.0)

    def _begin_paragraph(self) -> Turn:
        router, num_recaps = self._router, self._written.count(self._router.recap)
        if self._written.endswith(router.recap):  # a step that the recap ended
            return self._set(Turn("target", self._recap_limit(num_recaps - 1)))
        latest = self._written.rsplit(router.recap, 1)[-1]
        num_doubts = sum(_has_word(paragraph, router.cues) for paragraph in latest.split(router.delimiter))
        if num_doubts < min(router.doubts + num_recaps * router.doubts_step, router.most_doubts):
            return self._set(Turn("draft", router.look_tokens, (router.delimiter,)), is_look=True)
        self._written += router.recap
        return self._set(Turn("target", self._recap_limit(num_recaps), inject=router.recap))

    def _recap_limit(self, num_before: int) -> int:
        router = self._router
        return min(router.recap_tokens + num_before * router.recap_step, router.most_recap_tokens)

    def _write_rest(self) -> Turn:
        delimiter = self._router.delimiter
        # an engine's stop matches within one turn: where the delimiter has begun, the next token is looked at alone
        has_begun = any(self._written.endswith(delimiter[:length]) for length in range(1, len(delimiter)))
        return self._set(Turn("draft", 1 if has_begun else _REST, (delimiter,)))

    def _set(self, turn: Turn, *, is_look: bool = False) -> Turn:
        self._turn, self._is_look = turn, is_look
        return turn


def _has_word(text: str, words: Sequence[str]) -> bool:
    pattern = "|".join(rf"\b{re.escape(word)}\b" for word in words)
    return bool(words) and re.search(pattern, text, re.IGNORECASE) is not None
