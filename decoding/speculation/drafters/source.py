"""Contract of draft sources: candidates for the next token of every context on the frontier of the drafts.

A source knows nothing of trees: `tree_builder.py` calls it, level by level for all branches at once. Its state has one
row per context, in a form that only the source interprets; rows are selected with `state[indices]`.

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
SourceStates = Any
"""The states of a source: each has a type of its own that supports `states[indices]`."""


@dataclass(frozen=True)
class NextTokens:
    """Candidates for the next token of each context, best first, padded with id -1 and log-probability -inf.

    logp_FK   natural logs at temperature 1; their probabilities may sum to less than one (the rest is other tokens)
    trust_F   0 <= level < `TRUST_LEVELS`: contexts of one level are right about equally often, which is
              learned; a source without levels gives 0
    """

    ids_FK: Ints
    logp_FK: Floats
    trust_F: Ints


class DraftSource(Protocol):
    """Proposes next tokens, and learns from the target's output.

    A class whose attribute `needs_model` is True loads a model: it is constructed last, with the keyword arguments
    `target_tokenizer` and `target_path` besides its settings, of which `path` is checked to be a model; with an
    attribute `needs_target` that is True also `target_backend`, the loaded model, None where it runs in a server.
    With an attribute `reads_hidden` that is True its feedback has the target's hidden states.
    `is_trained` is as that of a `Drafter`.
    Its static method `validate(settings)`, if it has one, raises ValueError before any model is loaded.
    """

    @property
    def feedback_k(self) -> int:
        """Number of the target's top tokens per row that `observe` needs; 0 = none."""
        ...

    @property
    def has_probabilities(self) -> bool:
        """Whether `logp_FK` is a distribution to sample from, or only a ranking."""
        ...

    def root_states(self, branches: Sequence[Branch]) -> SourceStates:
        """Returns the states after the committed tokens of each branch, B rows."""
        ...

    def next_tokens(self, state: SourceStates) -> NextTokens:
        """Returns the candidates after each of F contexts."""
        ...

    def advance(self, state: SourceStates, tokens_F: Ints) -> SourceStates:
        """Returns the states after one more token in each context, F rows."""
        ...

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Learns from a finished round. *Mutates* the source only. Memory must stay bounded."""
        ...
