"""At which distance two steps say the same, for an embedder: measured on what a search asks it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import numpy.typing as npt

from decoding.core import Vector
from reason.scorers.embedders.base import Embedder
from search.clustering import condensed_distances
from search.tree import Step

Floats = npt.NDArray[np.float64]


def says(text: str) -> tuple[str, ...]:
    """What a step of a calculation says: its numbers, in order. A stand-in for meaning that needs no second model.

    >>> says("First, x1: 4*8=32.") == says("We get x1: 4*8=32.") != says("x1: 4*8=34.")
    True
    """
    return tuple(re.findall(r"\d+(?:\.\d+)?", text))


@dataclass
class Recorder:
    """An embedder that remembers, for every pair of steps it was shown together, how far apart they are and whether
    they say the same."""

    inner: Embedder
    distances: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)

    @property
    def cut(self) -> float:
        return self.inner.cut

    @property
    def wants_hidden(self) -> bool:
        return self.inner.wants_hidden

    def check(self) -> None:
        self.inner.check()

    def load(self) -> None:
        self.inner.load()

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        vectors = await self.inner.embed(steps, hidden)
        said = [says(step.text) for step in steps]
        self.distances += condensed_distances(vectors).tolist()
        self.same += [one == other for one, other in combinations(said, 2)]
        return vectors


@dataclass(frozen=True)
class Cut:
    """A distance, and how well it tells pairs apart.

    kept_together  share of the pairs that say the same and are nearer
    kept_apart     share of the others that are not
    """

    distance: float
    kept_together: float
    kept_apart: float

    @property
    def balanced(self) -> float:
        """The mean of both shares; 0.5 is chance."""
        return (self.kept_together + self.kept_apart) / 2


def cuts(distances: Sequence[float], same: Sequence[bool], at: Sequence[float]) -> list[Cut]:
    """Each distance as a cut. Raises: ValueError unless there are pairs of both kinds."""
    d, s = np.asarray(distances), np.asarray(same, dtype=bool)
    if not s.any() or s.all():
        raise ValueError("the search showed the embedder no pairs of both kinds; solve more problems, or wider")
    return [Cut(c, float((d[s] <= c).mean()), float((d[~s] > c).mean())) for c in at]


def best_cut(distances: Sequence[float], same: Sequence[bool]) -> Cut:
    """The quantile of the distances that tells pairs apart best, of equals the middle one."""
    tried = cuts(distances, same, np.unique(np.quantile(distances, np.linspace(0.005, 0.995, 199))).tolist())
    top = max(cut.balanced for cut in tried)
    equals = [cut for cut in tried if cut.balanced >= top - 1e-3]
    return equals[len(equals) // 2]
