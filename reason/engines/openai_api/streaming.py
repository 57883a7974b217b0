"""A reply that comes piece by piece, up to where it is to end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reason.engines.openai_api.wire import Ended, Reply, finish_of, first_stop, pieces_of, usage_of
from reason.engines.sglang_client.errors import Lost


class Stream:
    """Puts a reply together. Where a server does not say what ended a text, reading along tells.

    >>> stream = Stream(("\\n\\n",))
    >>> events = [{"choices": [{"text": text, "finish_reason": None}]} for text in ("One.", "\\n", "\\nTwo.")]
    >>> [stream.add(event) for event in events], stream.reply().text, stream.reply().ended
    ([False, False, True], 'One.\\n\\n', 'stop')
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._text = ""
        self._ended: Ended | None = None
        self._usage: dict[str, Any] = {}
        self._pieces: list[tuple[str, float]] = []
        self._events = 0

    def add(self, event: Any) -> bool:
        """Whether the reply has come to a stop string, so that nothing more is wanted. *Mutates*.

        Raises: Lost where the event is none of a completion.
        """
        try:
            if event.get("usage"):
                self._usage = usage_of(event)
            return any(self._take(choice) for choice in event.get("choices") or ())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Lost(f"the stream is not one of a completion: {type(error).__name__} {error}") from error

    def reply(self) -> Reply:
        """The whole. Where it was left at a stop string nobody counted it: most servers send a token at a time.

        Raises: Lost where it broke off.
        """
        if self._ended is None:
            raise Lost("the stream broke off")
        return Reply(self._text, self._ended, **({"tokens": self._events} | self._usage), pieces=tuple(self._pieces))

    def _take(self, choice: Any) -> bool:
        said = choice.get("delta", choice)
        piece = said.get("text") if "text" in said else said.get("content")
        self._pieces += pieces_of(choice)
        if piece:
            self._events += 1
            # a stop string may have begun in what came before
            behind = max(0, len(self._text) - max(map(len, self._stop), default=0))
            self._text += piece
            end = first_stop(self._text[behind:], self._stop)
            if end is not None:
                self._text, self._ended = self._text[: behind + end], "stop"
                return True
        if choice.get("finish_reason"):
            ended = finish_of(choice)
            self._ended = "length" if ended == "length" else "eos"
        return False
