"""Calibrates the distance threshold of an embedder on the steps of real searches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import numpy.typing as npt

from decoding.core import Vector
from reason.scorers.base import LoadableEmbedder
from search.clustering import cosine_distances
from search.tree import Step

Floats = npt.NDArray[np.float64]


def step_numbers(text: str) -> tuple[str, ...]:
    """Returns the numbers of a step in order: two steps with equal numbers count as equal. Needs no second model.

    >>> step_numbers("First, x1: 4*8=32.") == step_numbers("We get x1: 4*8=32.") != step_numbers("x1: 4*8=34.")
    True
    """
    return tuple(re.findall(r"\d+(?:\.\d+)?", text))


@dataclass
class DistanceRecorder:
    """Implements `LoadableEmbedder` by another embedder; records distance and equality of all pairs of steps."""

    inner: LoadableEmbedder
    distances: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)

    @property
    def distance_threshold(self) -> float:
        return self.inner.distance_threshold

    @property
    def needs_hidden_states(self) -> bool:
        return self.inner.needs_hidden_states

    def validate(self) -> None:
        self.inner.validate()

    def load(self) -> None:
        self.inner.load()

    async def embed(self, steps: Sequence[Step], hidden: Sequence[Vector | None]) -> Vector:
        vectors = await self.inner.embed(steps, hidden)
        numbers = [step_numbers(step.text) for step in steps]
        self.distances += cosine_distances(vectors).tolist()
        self.same += [one == other for one, other in combinations(numbers, 2)]
        return vectors


@dataclass(frozen=True)
class ThresholdQuality:
    """A distance threshold, and how well it separates equal from different steps.

    same_below       share of the equal pairs whose distance is at most the threshold
    different_above  share of the different pairs whose distance is above it
    """

    distance: float
    same_below: float
    different_above: float

    @property
    def balanced_accuracy(self) -> float:
        """Mean of both shares; 0.5 is chance."""
        return (self.same_below + self.different_above) / 2


def rate_thresholds(distances: Sequence[float], same: Sequence[bool], at: Sequence[float]) -> list[ThresholdQuality]:
    """Rates each threshold in `at`. Raises: ValueError unless there are equal and different pairs."""
    d, s = np.asarray(distances), np.asarray(same, dtype=bool)
    if not s.any() or s.all():
        raise ValueError(
            "the searches compared no equal or no different steps; solve more problems or increase search.n"
        )
    return [ThresholdQuality(c, float((d[s] <= c).mean()), float((d[~s] > c).mean())) for c in at]


def best_threshold(distances: Sequence[float], same: Sequence[bool]) -> ThresholdQuality:
    """Returns the quantile of the distances that separates best; the middle one of equally good ones.

    Raises: ValueError as `rate_thresholds`.
    """
    # without distances there is no quantile, and the next call raises
    quantiles = np.unique(np.quantile(distances, np.linspace(0.005, 0.995, 199))).tolist() if distances else []
    rated = rate_thresholds(distances, same, quantiles)
    best = max(each.balanced_accuracy for each in rated)
    equals = [each for each in rated if each.balanced_accuracy >= best - 1e-3]
    return equals[len(equals) // 2]
