"""OpenAI's two formats, whole and in chunks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from reason.serve.choices import Choice
from reason.serve.responses import dumps
from search.strategy import Written

SHORTENED = 160
DONE = b"data: [DONE]\n\n"
STILL_HERE = b": still searching\n\n"
"""A comment in the stream, which clients skip: it keeps a connection open on which nothing has happened for a while."""


@dataclass(frozen=True)
class Wire:
    """How the answers of one endpoint look. `head` are the fields every answer and chunk begins with."""

    chat: bool
    head: Mapping[str, Any]

    def whole(self, choices: Sequence[Choice], usage: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        return {
            **self._named(""),
            "choices": [self._choice(i, choice) for i, choice in enumerate(choices)],
            "usage": usage,
            "search": search,
        }

    def begin(self) -> bytes:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""} if self.chat else {"text": ""})

    def progress(self, written: Written, tokens: int) -> bytes:
        """A line of reasoning: what was written, how it was judged, and how many tokens there are by now."""
        text = shorten(" ".join(step.text for step in written.steps), SHORTENED, placeholder=" …")
        score = "" if written.score is None else f", score {written.score:.2f}"
        return self._chunk({"reasoning_content": f"[{tokens:,} tokens{score}] {text}\n"} | self._silent)

    def answer(self, choices: Sequence[Choice], search: Mapping[str, Any]) -> Iterator[bytes]:
        """The chosen texts, then why each ended; the last of these chunks has the search's block."""
        for i, choice in enumerate(choices):
            yield self._chunk({"content" if self.chat else "text": choice.text}, index=i)
        for i, choice in enumerate(choices):
            more = {"search": search} if i == len(choices) - 1 else {}
            yield self._chunk(self._silent, index=i, finish=choice, **more)

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The chunk with the usage and no choice."""
        return _event({**self._named(".chunk"), "choices": [], "usage": usage})

    @property
    def _silent(self) -> dict[str, Any]:
        return {} if self.chat else {"text": ""}

    def _named(self, suffix: str) -> dict[str, Any]:
        return {**self.head, "object": f"chat.completion{suffix}" if self.chat else "text_completion"}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": choice.text}} if self.chat else {"text": choice.text}
        return {"index": index, **said, "logprobs": None, **_end(choice)}

    def _chunk(self, said: Mapping[str, Any], *, index: int = 0, finish: Choice | None = None, **more: Any) -> bytes:
        end = {"finish_reason": None} if finish is None else _end(finish)
        delta = {"delta": said} if self.chat else said
        return _event(
            {**self._named(".chunk"), "choices": [{"index": index, **delta, "logprobs": None, **end}], **more}
        )


def _end(choice: Choice) -> dict[str, Any]:
    return {"finish_reason": choice.finish, "answer": choice.answer, "score": choice.score}


def failed(error: Mapping[str, Any]) -> bytes:
    """An error inside a stream that has begun; nothing follows it."""
    return _event(error)


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + dumps(data) + b"\n\n"
