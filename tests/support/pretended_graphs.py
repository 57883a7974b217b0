"""CUDA graphs that are pretended on a CPU: a replay runs the recorded function again, over poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoding.model.round_graphs import LaunchGraph


@dataclass(frozen=True)
class PretendedGraph:
    """A recorded function. As its launches have fixed arguments, what it read besides tensors is as it was then."""

    run: Callable[[], Tensor]
    output: Tensor
    recorder: PretendedRecorder

    def replay(self) -> None:
        """Runs the function; memory that it does not initialise is NaN, and so are the results of all other graphs."""
        for output in self.recorder.outputs:
            output.fill_(torch.nan)
        self.recorder.replays += 1
        with poisoned_memory():
            self.output.copy_(self.run())


@dataclass(eq=False)
class PretendedRecorder:
    """Implements `GraphRecorder`; `outputs` are those of all graphs, `replays` how often one was replayed."""

    outputs: list[Tensor] = field(default_factory=list)
    replays: int = 0

    def record(self, run: Callable[[], Tensor]) -> tuple[LaunchGraph, Tensor]:
        """Calls the function twice, as a real recording does; nothing is known of the result before a replay."""
        with poisoned_memory():
            run()
            output = torch.full_like(run(), torch.nan)
        self.outputs.append(output)
        return PretendedGraph(run, output, self), output


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fills the memory that is allocated meanwhile with NaN, or with the largest integers."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
