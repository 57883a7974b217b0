"""Tells the text of a solution while an engine writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from decoding.core import Generation, GenerationRequest, TokenGenerator, Tokens

INTERVAL_S = 0.1
"""Seconds between two tellings: they are read by people, and each is an event on two loops and a message."""


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
        texts = [GrowingText(self._decode, list(each.prefix[self._root_length :])) for each in requests]
        telling = asyncio.create_task(self._tell_texts(texts))
        try:
            return await self._engine.generate(
                [replace(each, on_tokens=text.tokens.extend) for each, text in zip(requests, texts, strict=True)]
            )
        finally:
            telling.cancel()

    async def _tell_texts(self, texts: Sequence[GrowingText]) -> None:
        while True:
            # the same moments for all searches: each time that the loop wakes up, rounds wait for the interpreter
            await asyncio.sleep(INTERVAL_S - time.monotonic() % INTERVAL_S)
            for text in texts:
                if text.read_tokens():
                    self._tell(text.text)


@dataclass
class GrowingText:
    """A text, and the tokens that it is made of; another thread may add tokens.

    >>> growing = GrowingText(lambda tokens: bytes(tokens).decode(errors="replace"), [*b"2 ", 0xC3])
    >>> growing.read_tokens(), growing.tokens.append(0x97), growing.read_tokens(), growing.text
    (False, None, True, '2 ×')
    """

    decode: Callable[[Tokens], str]
    tokens: list[int]
    text: str = field(default="", init=False)
    _num_read: int = field(default=0, init=False)

    def read_tokens(self) -> bool:
        """Adds the text of the new tokens, unless they end within a character; returns whether it did. *Mutates*."""
        end = len(self.tokens)
        part = self.decode(tuple(self.tokens[self._num_read : end]))
        if not part or part.endswith("\ufffd"):
            return False
        self.text, self._num_read = self.text + part, end
        return True
