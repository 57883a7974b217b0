"""Says what an engine must do to be measured beside the local one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from decoding.core import Tokens
from reason.bench.baselines import BranchWorkload

Decode = Callable[[], list[Tokens]]
"""Decodes all branches of a workload and returns the new tokens of each. This is what is timed."""


class PeerEngine(Protocol):
    """An engine that holds the model, ready to decode. All engines read and return the ids of our tokenizer."""

    @property
    def description(self) -> str:
        """Its packages with their versions, and how it is set: a line of the report."""
        ...

    def open_run(self, workload: BranchWorkload, *, greedy: bool = False) -> AbstractContextManager[Decode]:
        """Returns the context in which a workload can be decoded once, with room for it and nothing cached.

        Branches are sampled at temperature 1 for `workload.new` tokens, whatever ends before that; greedy ones are the
        likeliest tokens, and may end where the text ends.
        """
        ...
