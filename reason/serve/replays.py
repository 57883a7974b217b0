"""Answers a repeated request with the reply to the first one: clients repeat what they believe was lost."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

REPLAY_S = 600.0
"""Seconds in which a repeated request gets the first one's reply; clients give up within that."""


@dataclass
class _SharedReply(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0
    ended: float | None = None


class ReplayStore(Generic[T]):
    """Holds the last `keep` replies, and those under way, by the name of their request. Used from one event loop."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._replies: OrderedDict[str, _SharedReply[T]] = OrderedDict()

    async def reply_once(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of `work`, or of that which an equal name started before.

        The work ends when all requests that wait for it are cancelled. What it raises is not kept. *Mutates* the store.
        """
        self._drop(time.monotonic() - REPLAY_S)
        shared = self._replies.get(name)
        if shared is None:
            self._make_room()
            shared = self._replies[name] = _SharedReply(asyncio.create_task(work()))
        shared.waiting += 1
        try:
            result = await asyncio.shield(shared.task)
            shared.ended = shared.ended or time.monotonic()
            return result
        finally:
            shared.waiting -= 1
            if shared.ended is None and not shared.waiting and self._replies.get(name) is shared:
                del self._replies[name]  # before the task is cancelled: a repeated request must not wait for that one
            if not shared.waiting and not shared.task.done():
                shared.task.cancel()
                await asyncio.gather(shared.task, return_exceptions=True)

    def _drop(self, before: float) -> None:
        """Drops replies that ended before this instant."""
        for name, shared in list(self._replies.items()):
            if shared.ended is not None and shared.ended < before:
                del self._replies[name]

    def _make_room(self) -> None:
        """Drops the oldest replies until one more is not too many; those under way are needed."""
        ended = [name for name, shared in self._replies.items() if shared.ended is not None]
        for name in ended[: max(0, len(ended) + 1 - self._keep)]:
            del self._replies[name]
