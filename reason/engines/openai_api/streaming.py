"""Assembles a streamed reply and finds where it is to end. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from reason.engines.http.errors import ResponseLost, treat_as_lost
from reason.engines.http.plausible import read_count, read_text
from reason.engines.openai_api.response import (
    CompletionResponse,
    EndCause,
    RequestedText,
    TokenCounts,
    find_first_stop,
    parse_end_cause,
    parse_token_logprobs,
    parse_top_logprobs,
    parse_usage,
)
from reason.engines.openai_api.response_json import ChoiceJson, CompletionJson


class CompletionStream:
    """Adds up the events of a stream. It finds stop strings itself, for servers that do not say what ended a text.

    text        what has come so far, up to a stop string
    num_events  events with text or a thought so far; most servers send one for each token

    >>> stream = CompletionStream(RequestedText(stop=("\\n\\n",), max_tokens=9, prompt_bytes=2))
    >>> events = [{"choices": [{"text": text, "finish_reason": None}]} for text in ("One.", "\\n", "\\nTwo.")]
    >>> [stream.add_event(event) for event in events], stream.build_response().text, stream.build_response().end_cause
    ([False, False, True], 'One.\\n\\n', 'stop')
    """

    def __init__(self, requested: RequestedText) -> None:
        self._requested, self._stop = requested, requested.stop
        self.text = ""
        self._end_cause: EndCause | None = None
        self._counts: TokenCounts | None = None
        self._token_logprobs: list[tuple[str, float]] = []
        self._top_logprobs: list[tuple[float, ...]] = []
        self.num_events = 0
        self._is_in_thought = self._has_thought = self._has_dropped_thought = False

    def add_event(self, event: object) -> bool:
        """Returns whether the text has reached a stop string, so that the stream can be closed. *Mutates*.

        Raises: ResponseLost where the event is none of a completion.
        """
        with treat_as_lost("an event of a completion"):
            reply = cast(CompletionJson, event)
            if reply.get("usage"):
                self._counts = parse_usage(reply, self._requested)
            choices = [choice for choice in reply.get("choices") or () if not choice.get("index")]  # one was requested
            is_complete = any(map(self._add_choice, choices))
            self._requested.require_length(self.text)
            return is_complete

    @property
    def is_finished(self) -> bool:
        """Whether an event has said what ended the text."""
        return self._end_cause is not None

    def build_response(self) -> CompletionResponse:
        """Returns the whole reply. Raises: ResponseLost where the stream broke off."""
        if self._end_cause is None:
            raise ResponseLost("the stream broke off")
        return self._build(self._end_cause)

    def build_partial(self) -> CompletionResponse | None:
        """Returns what has come of a stream that broke off; None where nothing has."""
        if not self.num_events:
            return None
        partial = self._build(self._end_cause or "unknown")
        # some servers put several tokens into an event
        count = max(partial.tokens or 0, len(partial.token_logprobs), self.num_events)
        return replace(partial, tokens=min(count, self._requested.max_tokens))

    def _build(self, end_cause: EndCause) -> CompletionResponse:
        # A stream closed at a stop string never sends its counts; most servers send one token per event.
        counts = self._counts or TokenCounts(tokens=None, prompt_tokens=None, cached_tokens=0)
        if self.text and not counts["tokens"]:
            counts["tokens"] = read_count(self.num_events, self._requested.max_tokens)
        # Only the whole text is checked: the halves of a character may come in two events.
        return CompletionResponse(
            read_text(self.text),
            end_cause,
            **counts,
            token_logprobs=tuple(self._token_logprobs),
            top_logprobs=tuple(self._top_logprobs),
            has_dropped_thought=self._has_dropped_thought,
            has_thought_apart=self._has_thought,
        )

    def _add_choice(self, choice: ChoiceJson) -> bool:
        message = choice.get("delta") or choice.get("message") or choice  # a message: the server does not stream
        piece = message.get("text") if "text" in message else message.get("content")
        if piece is not None and not isinstance(piece, str):
            raise TypeError(f"its text is a {type(piece).__name__}")
        self._token_logprobs += parse_token_logprobs(choice)
        self._top_logprobs += parse_top_logprobs(choice)
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        if not isinstance(thought, str):
            raise TypeError(f"its thought is a {type(thought).__name__}")
        self.num_events += bool(piece or thought)
        piece = self._tag_thought(thought) + self._end_thought(piece or "")
        if piece:
            # Search from before the new piece: a stop string may have begun in an earlier one.
            start = max(0, len(self.text) - max(map(len, self._stop), default=0))
            self.text += piece
            end = find_first_stop(self.text[start:], self._stop)
            if end is not None:
                self.text, self._end_cause = self.text[: start + end], "stop"
                return True
        if choice.get("finish_reason"):
            self._end_cause = "length" if parse_end_cause(choice) == "length" else "eos"
        return False

    def _tag_thought(self, thought: str) -> str:
        """Returns a piece of a thought, with the opening tag if it is the first one. *Mutates*."""
        if not thought:
            return ""
        self._has_thought = True
        if self._requested.thought_tags is None:
            self._has_dropped_thought = True
            return ""
        is_first, self._is_in_thought = not self._is_in_thought, True
        return (self._requested.thought_tags[0] if is_first else "") + thought

    def _end_thought(self, piece: str) -> str:
        """Returns a piece of the text, with the closing tag if it is the first one behind a thought. *Mutates*."""
        if not piece or not self._is_in_thought or self._requested.thought_tags is None:
            return piece
        self._is_in_thought = False
        return self._requested.thought_tags[1] + piece
