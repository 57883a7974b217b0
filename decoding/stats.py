"""What an engine has done so far, as numbers to show, log and plot."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Moment(NamedTuple):
    """The engine after one round: `time` is `time.monotonic()`, the rest are counts."""

    time: float
    running: int
    waiting: int
    resident_tokens: int


@dataclass
class EngineStats:
    """Counters since the engine was made; `LocalEngine.stats` hands out copies.

    rounds             forward passes of the target
    rows               tokens fed, prompt and draft tokens included
    tokens             tokens generated
    drafted, accepted  draft tokens fed, and kept
    prompt_tokens      prefix tokens of admitted requests
    cached_tokens      of these, found in the prefix cache
    resident_tokens    KV tokens the running branches hold now, shared ones counted once
    unshared_tokens    what they would hold if nothing were shared
    peak_*             the largest of either after any round
    resident_rounds    resident_tokens added up over all rounds
    problem_rounds     groups (problems) that had running branches, added up over all rounds
    round_seconds      of the rounds that only decoded
    plain_seconds      what their tokens would have taken without drafts, by the controller's cost curve; 0 without one
    seconds_*          model (attention included), attention (CPU only), sampling, drafting, and the rest of the loop
    timeline           the last 4096 rounds
    """

    rounds: int = 0
    rows: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    evicted_tokens: int = 0
    resident_tokens: int = 0
    unshared_tokens: int = 0
    peak_resident_tokens: int = 0
    peak_unshared_tokens: int = 0
    resident_rounds: int = 0
    problem_rounds: int = 0
    capacity_tokens: int = 0
    round_seconds: float = 0.0
    plain_seconds: float = 0.0
    seconds_model: float = 0.0
    seconds_attention: float = 0.0
    seconds_sampling: float = 0.0
    seconds_drafting: float = 0.0
    seconds_bookkeeping: float = 0.0
    timeline: deque[Moment] = field(default_factory=lambda: deque(maxlen=4096))

    def snapshot(self) -> EngineStats:
        """A copy that no longer changes."""
        return replace(self, timeline=deque(self.timeline))

    @property
    def busy_seconds(self) -> float:
        """Time in rounds; the rest of the wall clock the engine had nothing to do."""
        return self.seconds_model + self.seconds_sampling + self.seconds_drafting + self.seconds_bookkeeping

    def residency(self, now: Moment, unshared: int, problems: int) -> None:
        """Records what is held after a round. *Mutates*."""
        self.running, self.waiting = now.running, now.waiting
        self.resident_tokens, self.unshared_tokens = now.resident_tokens, unshared
        self.peak_resident_tokens = max(self.peak_resident_tokens, now.resident_tokens)
        self.peak_unshared_tokens = max(self.peak_unshared_tokens, unshared)
        self.resident_rounds += now.resident_tokens
        self.problem_rounds += problems
        self.timeline.append(now)
