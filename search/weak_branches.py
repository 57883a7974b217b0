"""Drops solutions of which the model is too unsure while they are being written (DeepConf, arXiv 2508.15260, section
3.3, online thinking)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoding.core import MAX_NUM_TOP, Generation, GenerationRequest, Vector
from decoding.validation import require_count, require_number
from search.confidence import group_confidences, measure_confidence, token_confidences
from search.generations import cut_generation, with_max_tokens

_PARTS_PER_WINDOW = 4
"""Parts in which a window is generated: what is written behind the end of a dropped solution is half of one."""

_ROUNDING = 1e-4
"""Confidences differ by less where only the batch differs; such a difference drops nothing."""


@dataclass(frozen=True, kw_only=True)
class DropKnobs:
    """Knobs of strategies that drop weak solutions while they are being written.

    drop_percentile  a solution is dropped as soon as its confidence over `drop_window` tokens is below this percentile
                     of those of the first solutions, each at its lowest; None drops none
    drop_window      tokens of a window
    warm_up          first solutions, which are written to their end
    """

    drop_percentile: float | None = None
    drop_window: int = 2048
    warm_up: int = 8

    def __post_init__(self) -> None:
        if self.drop_percentile is not None:
            require_number("drop_percentile", self.drop_percentile, low=0, high=100)
        require_count("drop_window", self.drop_window, at_least=1)
        require_count("warm_up", self.warm_up, at_least=1)

    def require_later_solutions(self, n: int) -> None:
        """Raises ValueError where something is to be dropped and all `n` solutions are warm-up."""
        if self.drop_percentile is not None and self.warm_up >= n:
            raise ValueError(f"warm_up must be below n={n}, got {self.warm_up}: drop_percentile drops later solutions")

    @property
    def num_top(self) -> int:
        """`GenerationRequest.num_top` of its requests."""
        return 0 if self.drop_percentile is None else MAX_NUM_TOP

    def find_floor(self, solutions: Sequence[Vector]) -> ConfidenceFloor | None:
        """Returns the floor for further solutions, from the confidences of the tokens of the first ones.

        None where nothing is dropped, or none of the first ones was measured.
        """
        lowest = [measure_confidence(solution, "window", window=self.drop_window) for solution in solutions]
        known = [confidence for confidence in lowest if confidence is not None]
        if self.drop_percentile is None or not known:
            return None
        return ConfidenceFloor(float(np.percentile(known, self.drop_percentile)), self.drop_window)


@dataclass(frozen=True)
class ConfidenceFloor:
    """The lowest mean confidence of `window` successive tokens at which a solution goes on."""

    threshold: float
    window: int

    def limit_request(self, request: GenerationRequest) -> GenerationRequest:
        """Returns the request for the tokens after which a solution is looked at."""
        part = max(1, self.window // _PARTS_PER_WINDOW)
        return with_max_tokens(request, min(part, request.params.max_tokens))

    def cut_weak(self, written: Generation, border: int) -> Generation | None:
        """Returns `written`, whose tokens behind `border` are new, up to the first token at which it is too weak.

        None where it goes on: also before `window` tokens are measured, and where none is.
        """
        if written.top_logprobs is None:
            return None
        known = np.flatnonzero(~np.isnan(written.top_logprobs[:, 0]))
        # of the windows that end behind the border, where the first one begins
        first = max(0, int(np.searchsorted(known, border)) - self.window + 1)
        if len(known) - first < self.window:
            return None
        means = group_confidences(token_confidences(written.top_logprobs[known[first:]]), self.window)
        weak = np.flatnonzero(means < self.threshold - _ROUNDING)
        if not len(weak):
            return None
        return cut_generation(written, int(known[first + weak[0] + self.window - 1]) + 1)
