"""Layers that a model skips to draft for itself, searched while it decodes: SWIFT (arXiv 2410.06916).

The first and the last layer always run. Every so many rounds a candidate that differs in one skipped layer reads the
last tokens of a text; it takes over if it predicts more of them than the layers in use do. So a search costs two passes
of the part of the model per trial, and ends after a number of trials or once the agreement is high enough.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from typing import Protocol, runtime_checkable

import numpy as np

from decoding.core import Tokens
from decoding.kv.sequence import TokenSequence
from decoding.model.backend import Backend
from decoding.model.batch import SequenceInput, pack_inputs
from decoding.speculation.interfaces import Feedback
from decoding.validation import require_count, require_share

CONTEXT = 256
"""Tokens that a trial reads."""
WINDOW = 32
"""Of these, the last ones whose predictions count."""


@runtime_checkable
class LayeredBackend(Backend, Protocol):
    """A backend that can run a part of its layers."""

    @property
    def num_layers(self) -> int: ...
    def view_layers(self, layers: Items[int]) -> Backend:
        """Returns a backend of these layers alone."""
        ...


class LayerSearch:
    """Implements `ModelUpdater`.

    target   the model
    skip     share of the layers that are skipped
    trials   candidates that are tried in all; 0: the layers stay those of the start, evenly spaced
    every    rounds from one trial to the next
    enough   agreement, a share of predicted tokens, at which the search ends

    layers      those in use, ascending
    num_trials  candidates tried so far

    Raises: ValueError naming the setting, or for a model of fewer than three layers.
    """

    feedback_k = 0

    def __init__(
        self, target: LayeredBackend, *, skip: float = 0.45, trials: int = 50, every: int = 8, enough: float = 0.95
    ) -> None:
        check_search(skip, trials, every, enough)
        count = target.num_layers
        if count < 3:
            raise ValueError(f"a model that skips layers needs three or more; this one has {count}")
        self._target, self._trials, self._every, self._enough = target, trials, every, enough
        num_skipped = min(count - 2, max(1, round(skip * count)))
        self._skipped = {1 + (i * (count - 2)) // num_skipped for i in range(num_skipped)}
        self._random = random.Random(0)  # the same candidates in every run
        self._rounds = self.num_trials = 0
        self._is_over = trials == 0 or num_skipped == count - 2

    @property
    def layers(self) -> list[int]:
        return [layer for layer in range(self._target.num_layers) if layer not in self._skipped]

    def view_model(self) -> Backend:
        """Returns the part of the model that is in use."""
        return self._target.view_layers(self.layers)

    def update_model(self, feedback: Items[Feedback]) -> Backend | None:
        """See `ModelUpdater`: the part of the model with other layers, where these predict a text better."""
        self._rounds += bool(feedback)
        if self._is_over or not feedback or self._rounds % self._every:
            return None
        outcome = max(feedback, key=lambda each: len(each.branch.tokens))
        text = outcome.branch.tokens[max(0, len(outcome.branch.tokens) - CONTEXT) :]
        if len(text) <= WINDOW:
            return None
        self.num_trials += 1
        before, skipped = measure_agreement(self.view_model(), text), self._skipped
        self._skipped = self._change_one(skipped)
        after = measure_agreement(self.view_model(), text)
        self._is_over = self.num_trials >= self._trials or max(before, after) >= self._enough
        if after > before:
            return self.view_model()
        self._skipped = skipped
        return None

    def _change_one(self, skipped: set[int]) -> set[int]:
        """Returns the set with one layer exchanged for another that may be skipped."""
        others = [layer for layer in range(1, self._target.num_layers - 1) if layer not in skipped]
        return skipped - {self._random.choice(sorted(skipped))} | {self._random.choice(others)}


def check_search(skip: float, trials: int, every: int, enough: float) -> None:
    """Raises ValueError naming a wrong setting of `LayerSearch`."""
    require_share("skip", skip, above_zero=True, below_one=True)
    require_count("trials", trials)
    require_count("every", every, at_least=1)
    require_share("enough", enough)


def measure_agreement(backend: Backend, text: Tokens) -> float:
    """Returns the share of the last `WINDOW` tokens that the model predicts as most likely."""
    sequence, count = TokenSequence(0, text[:-1]), len(text) - 1
    first = max(0, count - WINDOW)
    inputs = [SequenceInput(sequence, count, np.arange(1, count + 1), first)]
    batch, _ = pack_inputs(inputs, backend)
    hidden = backend.forward(batch, backend.new_kv_pool(count))
    best = backend.apply_head(hidden).argmax(-1).cpu().numpy()
    return float((best == np.array(text[first + 1 :])).mean())
