"""Decides when a table is saved: an engine may be killed without a word, so a last moment to do it may not come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_IDLE_S = 5.0  # between savings while there is nothing else to do


@dataclass
class SavingSchedule:
    """Calls `save` when something was learned: soon after the last request, and now and then between requests.

    begin   seconds of the clock at which the engine began
    busy_s  between savings while requests wait for it: it takes up to a second for a large table
    """

    save: Callable[[], None]
    begin: float
    busy_s: float
    _is_learning: bool = field(default=False, init=False)
    _saved_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._saved_at = self.begin

    def note_round(self, now: float) -> None:
        """Records that the drafter has learned."""
        self._is_learning = True
        self._save_after(self.busy_s, now)

    def note_idle(self, now: float) -> None:
        """Records that no request runs."""
        self._save_after(_IDLE_S, now)

    def save_now(self, now: float) -> None:
        """Saves what was learned since the last time, if anything."""
        self._save_after(0.0, now)

    def _save_after(self, seconds: float, now: float) -> None:
        if self._is_learning and now - self._saved_at >= seconds:
            self.save()
            self._is_learning, self._saved_at = False, now
