"""Where guesses come from: for every context on the frontier of a draft, what may follow it.

A source knows nothing of trees: `tree_builder.py` walks it, level by level for all branches at once.
Its state says where it stands in a context, one row per context, in whatever form it likes; rows are picked
with `state[indices]`.

Shapes: B branches, F frontier contexts, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decoding.speculation.interfaces import Branch, Feedback

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

TRUST_LEVELS = 16


@dataclass(frozen=True)
class Successors:
    """What may follow each context, best first, padded with id -1 and log-probability -inf.

    logp_FK   natural logs at temperature 1; they need not sum to one (the rest is somebody else)
    trust_F   0 <= level < `TRUST_LEVELS`: contexts of one level turn out right about equally often, which is
              learned; a source that makes no difference says 0
    """

    ids_FK: Ints
    logp_FK: Floats
    trust_F: Ints


class Source(Protocol):
    """Says what may come next. Learns from what the target says."""

    @property
    def feedback_k(self) -> int:
        """How many of the target's top tokens `observe` wants for every row; 0 = none."""
        ...

    @property
    def has_probabilities(self) -> bool:
        """Whether `logp` is a distribution one may sample from, or merely a ranking."""
        ...

    def anchors(self, branches: Sequence[Branch]) -> Any:
        """The state after the committed tokens of each branch, B rows."""
        ...

    def successors(self, state: Any) -> Successors:
        """What may follow each of F contexts."""
        ...

    def descend(self, state: Any, tokens_F: Ints) -> Any:
        """The state after one more token in each context, F rows."""
        ...

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Learn from a finished round. *Mutates* the source only. Memory must stay bounded."""
        ...
