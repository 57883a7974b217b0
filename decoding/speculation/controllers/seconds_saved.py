"""Asks a controller what drafts have saved, also through controllers around it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from decoding.speculation.interfaces import Controller


@runtime_checkable
class ComparesRounds(Protocol):
    """Controller that compares drafted rounds with plain ones."""

    @property
    def seconds_saved(self) -> float | None:
        """Estimated seconds that plain rounds would have taken more; below 0 where drafts cost time; None: unknown."""
        ...


def find_seconds_saved(controller: Controller) -> float | None:
    """Returns the `seconds_saved` of a controller that compares rounds, None for another one."""
    return controller.seconds_saved if isinstance(controller, ComparesRounds) else None
