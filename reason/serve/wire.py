"""Builds the bodies of OpenAI's two completion formats, complete and in chunks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import shorten

from reason.serve.choices import CompletionChoice, SearchBlock, TokenLogprob, UsageBlock
from reason.serve.deltas import split_text
from reason.serve.json_schema import write_canonical
from reason.serve.live_reply import LiveReply
from reason.serve.responses import encode_json
from reason.thinking import SplitText
from search.strategy import StepEvent

MAX_PROGRESS_CHARS = 160
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": still searching\n\n"
"""A comment in the event stream, which clients skip: it keeps an idle connection open."""

Fields = Mapping[str, object]

_OPENING = {"role": "assistant", "content": ""}  # the first delta of each choice of a chat


@dataclass(frozen=True)
class ResponseWriter:
    """Writes the response to one request of `/v1/chat/completions` or `/v1/completions`.

    head        the fields that begin the response and each chunk
    with_usage  whether a stream ends with the usage
    """

    chat: bool
    head: Fields
    with_usage: bool = False

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
        return self._encode_chunk(_OPENING if self.chat else {"text": ""})

    def progress_chunk(self, event: StepEvent, tokens: int) -> bytes:
        """Returns one line of reasoning: the tokens generated so far, the score of the new step, its text."""
        text = shorten(" ".join(step.text for step in event.steps), MAX_PROGRESS_CHARS, placeholder=" …")
        score = "" if event.score is None else f", score {event.score:.2f}"
        return self._encode_chunk({"reasoning_content": f"[{tokens:,} tokens{score}] {text}\n"} | self._empty_delta)

    def live_chunk(self, part: SplitText, sent: LiveReply) -> bytes:
        """Returns a part of the thought, of the text, or of both."""
        thought = {"reasoning_content": part.thought} if part.thought else {}
        text = {"content" if self.chat else "text": part.text} if part.text else self._empty_delta
        return self._encode_chunk(thought | text)

    def last_chunks(
        self, choices: Sequence[CompletionChoice], usage: UsageBlock, search: SearchBlock, sent: LiveReply
    ) -> Iterator[bytes]:
        """Yields thoughts, parts of texts, calls, then the finish reasons; the last of these chunks holds `search`.

        What was `sent` of the first choice is left out.
        """
        for i, choice in enumerate(choices):
            if i == 0:
                choice = sent.drop_from(choice)
            elif self.chat:
                yield self._encode_chunk(_OPENING, index=i)
            if choice.thought:
                yield self._encode_chunk({"reasoning_content": choice.thought}, index=i)
            if choice.text is not None:
                for part in split_text(choice.text, choice.logprobs):
                    delta = {"content" if self.chat else "text": part.text}
                    yield self._encode_chunk(delta, index=i, logprobs=self._logprob_fields(part.logprobs, part.offset))
            if choice.calls:
                calls = [{"index": number, **call} for number, call in enumerate(self._call_fields(i, choice))]
                yield self._encode_chunk({"tool_calls": calls}, index=i)
        for i, choice in enumerate(choices):
            more: Fields = {"search": search} if i == len(choices) - 1 else {}
            yield self._encode_chunk(self._empty_delta, index=i, finished=choice, more=more)
        if self.with_usage:
            yield _encode_event({**self._head_fields(".chunk"), "choices": [], "usage": usage})
        yield DONE

    def error_chunk(self, error: Mapping[str, Mapping[str, str | None]]) -> bytes:
        """Returns the chunk that ends a stream with an error."""
        return _encode_event(error)

    @property
    def _empty_delta(self) -> dict[str, object]:
        return {} if self.chat else {"text": ""}

    def _head_fields(self, suffix: str) -> dict[str, object]:
        return {**self.head, "object": f"chat.completion{suffix}" if self.chat else "text_completion"}

    def _choice_fields(self, index: int, choice: CompletionChoice) -> dict[str, object]:
        thought = {"reasoning_content": choice.thought} if choice.thought else {}
        calls = {"tool_calls": self._call_fields(index, choice)} if choice.calls else {}
        message = {"role": "assistant", "content": choice.text, **thought, **calls}
        text: Fields = {"message": message} if self.chat else {"text": choice.text}
        return {"index": index, **text, "logprobs": self._logprob_fields(choice.logprobs), **_finish_fields(choice)}

    def _call_fields(self, index: int, choice: CompletionChoice) -> list[dict[str, object]]:
        """Returns the tool calls of a choice; their ids are unique in a conversation, as the reply's is."""
        reply_id = str(self.head["id"]).rpartition("-")[2][:24]
        return [
            {
                "id": f"call_{reply_id}{index}_{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": write_canonical(call.arguments)},
            }
            for number, call in enumerate(choice.calls)
        ]

    def _logprob_fields(self, tokens: Sequence[TokenLogprob] | None, offset: int = 0) -> Fields | None:
        """Returns `logprobs` of a chat choice, or of a completion, whose text begins at the character `offset`."""
        if tokens is None:
            return None
        if self.chat:
            return {"content": list_logprobs(tokens), "refusal": None}
        best = [{each.text: each.logprob for each in reversed(token.alternatives)} for token in tokens]
        return {
            "tokens": [each.text for each in tokens],
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": best if any(best) else None,
            "text_offset": list(accumulate((len(each.text) for each in tokens[:-1]), initial=offset)) if tokens else [],
        }

    def _encode_chunk(
        self,
        delta: Fields,
        *,
        index: int = 0,
        finished: CompletionChoice | None = None,
        logprobs: Fields | None = None,
        more: Fields | None = None,
    ) -> bytes:
        finish = {"finish_reason": None} if finished is None else _finish_fields(finished)
        fields: Fields = {"delta": delta} if self.chat else delta
        choice = {"index": index, **fields, "logprobs": logprobs, **finish}
        return _encode_event({**self._head_fields(".chunk"), "choices": [choice], **(more or {})})


def list_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """Returns tokens with their log-probabilities and alternatives, as chats and `/v1/responses` have them."""
    return [_name_token(each) | {"top_logprobs": list(map(_name_token, each.alternatives))} for each in tokens]


def _name_token(token: TokenLogprob) -> dict[str, object]:
    return {"token": token.text, "logprob": token.logprob, "bytes": _bytes_of(token.text)}


def _finish_fields(choice: CompletionChoice) -> dict[str, object]:
    return {"finish_reason": choice.finish_reason, "answer": choice.answer, "score": choice.score}


def _bytes_of(text: str) -> list[int] | None:
    """Returns the bytes of a token's text; None for a part of a character, whose bytes are not known."""
    return None if "\ufffd" in text else list(text.encode(errors="replace"))


def _encode_event(data: Fields) -> bytes:
    return b"data: " + encode_json(data) + b"\n\n"
