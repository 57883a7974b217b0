"""Tells the text of a solution while an engine writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from decoding.core import Generation, GenerationRequest, TokenGenerator, Tokens

INTERVAL_S = 0.1
"""Seconds between two tellings, at least: they are read by people, and each is an event on two loops and a message."""


class GrowingTextGenerator:
    """Generates with `engine`, whose settings have `tells_tokens`, and tells the text as it grows.

    It is for a search that writes one solution from its beginning to its end, by one request or by several that follow
    each other. The text may lack tokens of the last `INTERVAL_S` seconds when the solution ends.

    decode       converts ids from the middle of a solution to text
    root_length  tokens of the prompt, which are no part of the text
    tell         is called with the whole text so far, on the event loop of the search
    """

    def __init__(
        self, engine: TokenGenerator, decode: Callable[[Tokens], str], root_length: int, tell: Callable[[str], None]
    ) -> None:
        self._engine, self._decode, self._root_length, self._tell = engine, decode, root_length, tell

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.TokenGenerator`."""
        loop = asyncio.get_running_loop()
        return await self._engine.generate(
            [replace(each, on_tokens=self._grow(each.prefix[self._root_length :], loop).add) for each in requests]
        )

    def _grow(self, begun: Tokens, loop: asyncio.AbstractEventLoop) -> _GrowingText:
        return _GrowingText(self._decode, self._tell, loop, list(begun))


@dataclass
class _GrowingText:
    """The text of one request; two threads use it, one adds tokens and one reads them.

    tokens  of the solution, those of the request's prefix included
    """

    decode: Callable[[Tokens], str]
    tell: Callable[[str], None]
    loop: asyncio.AbstractEventLoop
    tokens: list[int]
    _num_read: int = 0
    _text: str = ""
    _next_s: float = 0.0

    def add(self, tokens: Sequence[int]) -> None:
        """Adds tokens, on the engine's thread. *Mutates* the text."""
        self.tokens += tokens
        now = time.monotonic()
        if now >= self._next_s:
            # all branches of a server in the same round: each telling wakes another thread, for which the round waits
            self._next_s = (now // INTERVAL_S + 1) * INTERVAL_S
            with suppress(RuntimeError):  # the loop is closed: the solver is, and soon its engine
                self.loop.call_soon_threadsafe(self._tell_text)

    def _tell_text(self) -> None:
        end = len(self.tokens)
        part = self.decode(tuple(self.tokens[self._num_read : end]))
        if part and not part.endswith("\ufffd"):  # else the rest of a character comes with the next tokens
            self._num_read = end
            self._text += part
            self.tell(self._text)
