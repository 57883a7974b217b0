"""Tracks when each token of a branch was attended to, for policies that score tokens by it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def _no_steps() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass
class AttentionHistory:
    """The steps at which tokens were attended to. A step is the position of the attending token.

    last_steps  `[K]`, the last step at which a later token attended to a token, or its own position
    intervals   `[K]`, the longest interval between two such steps; 0 where no later token attended to it
    """

    last_steps: Ints = field(default_factory=_no_steps)
    intervals: Ints = field(default_factory=_no_steps)

    def add_tokens(self, positions: Ints) -> None:
        """Starts to track tokens at these positions. *Mutates*."""
        self.last_steps = np.concatenate([self.last_steps, positions])
        self.intervals = np.concatenate([self.intervals, np.zeros(len(positions), dtype=np.int64)])

    def add_step(self, step: int, weights: Floats, threshold: float) -> None:
        """Records which of the tracked tokens the token at `step` attends to. *Mutates*.

        weights  `[K]`, its attention; 0 at tokens that it does not see
        """
        attended = np.flatnonzero(weights > threshold)
        gaps = step - self.last_steps[attended]
        self.intervals[attended] = np.maximum(self.intervals[attended], gaps)
        self.last_steps[attended] = step

    def select(self, index: Ints | npt.NDArray[np.bool_]) -> AttentionHistory:
        """Returns the history of some of the tokens."""
        return AttentionHistory(self.last_steps[index], self.intervals[index])
