"""Builds the bodies of OpenAI's two completion formats, complete and in chunks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from reason.serve.choices import CompletionChoice, SearchBlock, UsageBlock
from reason.serve.responses import encode_json
from search.strategy import StepEvent

MAX_PROGRESS_CHARS = 160
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": still searching\n\n"
"""A comment in the event stream, which clients skip: it keeps an idle connection open."""

Fields = Mapping[str, object]


@dataclass(frozen=True)
class ResponseWriter:
    """Writes the responses of one endpoint. `head` are the fields that begin the response and each chunk."""

    chat: bool
    head: Fields

    def complete_body(
        self, choices: Sequence[CompletionChoice], usage: UsageBlock, search: SearchBlock
    ) -> dict[str, object]:
        """Returns the body of a response that is not streamed."""
        return {
            **self._head_fields(""),
            "choices": [self._choice_fields(i, choice) for i, choice in enumerate(choices)],
            "usage": usage,
            "search": search,
        }

    def first_chunk(self) -> bytes:
        """Returns the chunk that opens a stream."""
        return self._encode_chunk({"role": "assistant", "content": ""} if self.chat else {"text": ""})

    def progress_chunk(self, event: StepEvent, tokens: int) -> bytes:
        """Returns one line of reasoning: the tokens generated so far, the score of the new step, its text."""
        text = shorten(" ".join(step.text for step in event.steps), MAX_PROGRESS_CHARS, placeholder=" …")
        score = "" if event.score is None else f", score {event.score:.2f}"
        return self._encode_chunk({"reasoning_content": f"[{tokens:,} tokens{score}] {text}\n"} | self._empty_delta)

    def answer_chunks(self, choices: Sequence[CompletionChoice], search: SearchBlock) -> Iterator[bytes]:
        """Yields thoughts and texts, then the finish reasons; the last of these chunks holds `search`."""
        for i, choice in enumerate(choices):
            if choice.thought:
                yield self._encode_chunk({"reasoning_content": choice.thought}, index=i)
            if choice.text is not None:
                yield self._encode_chunk({"content" if self.chat else "text": choice.text}, index=i)
        for i, choice in enumerate(choices):
            more: Fields = {"search": search} if i == len(choices) - 1 else {}
            yield self._encode_chunk(self._empty_delta, index=i, finished=choice, more=more)

    def usage_chunk(self, usage: UsageBlock) -> bytes:
        """Returns the chunk with the usage, which has no choice."""
        return _encode_event({**self._head_fields(".chunk"), "choices": [], "usage": usage})

    @property
    def _empty_delta(self) -> dict[str, object]:
        return {} if self.chat else {"text": ""}

    def _head_fields(self, suffix: str) -> dict[str, object]:
        return {**self.head, "object": f"chat.completion{suffix}" if self.chat else "text_completion"}

    def _choice_fields(self, index: int, choice: CompletionChoice) -> dict[str, object]:
        thought = {"reasoning_content": choice.thought} if choice.thought else {}
        message = {"role": "assistant", "content": choice.text, **thought}
        text: Fields = {"message": message} if self.chat else {"text": choice.text}
        return {"index": index, **text, "logprobs": None, **_finish_fields(choice)}

    def _encode_chunk(
        self, delta: Fields, *, index: int = 0, finished: CompletionChoice | None = None, more: Fields | None = None
    ) -> bytes:
        finish = {"finish_reason": None} if finished is None else _finish_fields(finished)
        fields: Fields = {"delta": delta} if self.chat else delta
        choice = {"index": index, **fields, "logprobs": None, **finish}
        return _encode_event({**self._head_fields(".chunk"), "choices": [choice], **(more or {})})


def _finish_fields(choice: CompletionChoice) -> dict[str, object]:
    return {"finish_reason": choice.finish_reason, "answer": choice.answer, "score": choice.score}


def error_chunk(error: Fields) -> bytes:
    """Returns the chunk that ends a stream with an error."""
    return _encode_event(error)


def _encode_event(data: Fields) -> bytes:
    return b"data: " + encode_json(data) + b"\n\n"
