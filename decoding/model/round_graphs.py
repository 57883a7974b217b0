"""Runs small rounds as CUDA graphs: all launches of the layers are recorded once and then repeated by one call.

A layer is ten short kernels, and a launch from Python takes longer than many of them. A graph repeats launches with the
same sizes and addresses. So the rows of a round are filled up to the next of a few counts, its arrays lie at fixed
places, and the segments of its plan are filled up with empty ones: of no rows, for which a program does nothing.

The rows that fill up have no keys; their K and V go to slot 0, and nothing reads them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from decoding.device_arrays import ArrayField, FixedArrays
from decoding.kv.out_of_memory import MEMORY_ERRORS, is_out_of_memory
from decoding.model.backend import TokenBatch
from decoding.model.fused_decoder import FusedDecoder
from decoding.model.segment_attention import SegmentAttention, list_arrays
from decoding.model.segments import SegmentItems, SegmentPlan
from decoding.triton_operators import round_to_power

log = logging.getLogger(__name__)

ROW_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 208, 256, 320, 384, 512)
"""Rows of a graph. Rounds of more rows compute for so long that their launches do not matter."""
_LEAST_ITEMS, _LEAST_NUMBERS = 16, 1024


class LaunchGraph(Protocol):
    """Launches that can be repeated, as `torch.cuda.CUDAGraph` does."""

    def replay(self) -> None:
        """Repeats the launches."""
        ...


class GraphRecorder(Protocol):
    """Makes graphs of launches."""

    def record(self, run: Callable[[], Tensor]) -> tuple[LaunchGraph, Tensor]:
        """Returns a graph of the launches of `run`, and the tensor to which each replay writes their result.

        `run` is called twice, and must launch the same each time. The result of a replay stands until any graph of this
        recorder is replayed.
        """
        ...


_CAPTURE = Lock()
"""PyTorch allows one capture at a time in a process."""


class CudaGraphRecorder:
    """Implements `GraphRecorder` by CUDA graphs, which share the memory of their intermediate results."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> tuple[LaunchGraph, Tensor]:
        """See `GraphRecorder`. The first call compiles the kernels and makes the workspaces of the products."""
        with _CAPTURE, torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                run()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # thread_local: other threads may allocate memory meanwhile
            recording: AbstractContextManager[None] = torch.cuda.graph(
                graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
            )
            with recording:
                output = run()
        return graph, output


class RoundSizes(NamedTuple):
    """Lengths of a round's arrays."""

    rows: int
    items: int
    keys: int
    words: int
    partials: int

    @classmethod
    def of_plan(cls, plan: SegmentPlan) -> RoundSizes:
        """Returns what a plan needs."""
        rows = len(plan.first_partial) - 1
        return cls(rows, len(plan.items.order), len(plan.keys), len(plan.words), plan.num_partials)

    def round_up(self) -> RoundSizes:
        """Returns sizes that many rounds have in common: the next of `ROW_COUNTS`, and powers of four and of two."""
        items = _LEAST_ITEMS
        while items < self.items:
            items *= 4
        others = (max(_LEAST_NUMBERS, round_to_power(size)) for size in (self.keys, self.words, self.partials))
        return RoundSizes(ROW_COUNTS[bisect_left(ROW_COUNTS, self.rows)], items, *others)

    def fits_into(self, other: RoundSizes) -> bool:
        """Returns whether no size is larger than its counterpart."""
        return all(size <= limit for size, limit in zip(self, other, strict=True))


class RoundGraphs:
    """Runs a decoder's rounds, small ones by graphs; there is a graph per pool, rounded rows and rounded items.

    Rounds run as they are, by `FusedDecoder.run_batch`, if they have more rows than `ROW_COUNTS`, rows without an
    output (those of a prompt that is being filled), or blocks. A graph is recorded when a round first needs it, until
    there is no memory for one.
    """

    def __init__(self, decoder: FusedDecoder, recorder: GraphRecorder) -> None:
        self._decoder, self._recorder = decoder, recorder
        self._has_memory = True
        # by pool, for as long as there is the pool; then by rounded rows and items
        self._graphs: MutableMapping[Tensor, dict[tuple[int, int], RoundGraph]] = WeakTensorKeyDictionary()

    def run_batch(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """Returns normed hidden states `[W, hidden]`. *Mutates* `pool`."""
        rows, plan = len(batch.tokens_T), batch.segments
        if plan is None or rows > ROW_COUNTS[-1] or len(batch.logits_indices) < rows:
            return self._decoder.run_batch(batch, pool)
        needed = RoundSizes.of_plan(plan)
        sizes = needed.round_up()
        graphs = self._graphs.setdefault(pool, {})
        key = sizes.rows, sizes.items
        if key in graphs and not needed.fits_into(graphs[key].sizes):
            # of two graphs of one kind only the larger one would be used
            del graphs[key]
        if key not in graphs and self._has_memory:
            self._record_graph(graphs, sizes, batch, pool)
        if key not in graphs:
            return self._decoder.run_batch(batch, pool)
        return graphs[key].run_batch(batch, plan)

    def _record_graph(
        self, graphs: dict[tuple[int, int], RoundGraph], sizes: RoundSizes, batch: TokenBatch, pool: Tensor
    ) -> None:
        """Adds a graph to `graphs`, unless there is no memory for it: then no more graphs are recorded. *Mutates*."""
        assert batch.segments is not None
        try:
            graph = RoundGraph(self._decoder, sizes, batch, batch.segments, pool, self._recorder)
        except MEMORY_ERRORS as error:
            # the end of a recording may raise an error of its own after that
            if not (is_out_of_memory(error) or (error.__context__ and is_out_of_memory(error.__context__))):
                raise
            self._has_memory = False
            log.warning(
                "there was no memory for a CUDA graph of %d rows: rounds of other sizes than before run kernel by "
                "kernel. A smaller engine.kv_mib leaves more, and engine.graphs=never records none (%s)",
                *(sizes.rows, error),
            )
        else:
            graphs[sizes.rows, sizes.items] = graph


class RoundGraph:
    """Runs the rounds of one decoder and pool whose arrays are of some sizes or shorter.

    Its first round, `batch`, is run twice while the launches are recorded: each time it writes the same K and V.
    """

    def __init__(
        self,
        decoder: FusedDecoder,
        sizes: RoundSizes,
        batch: TokenBatch,
        plan: SegmentPlan,
        pool: Tensor,
        recorder: GraphRecorder,
    ) -> None:
        self.sizes, self._rotary = sizes, decoder.rotary
        rows = ArrayField(sizes.rows, is_int32=False)
        self._arrays = FixedArrays(
            [
                *(rows, rows, rows),
                ArrayField(sizes.items * len(SegmentItems._fields), is_int32=True),
                ArrayField(sizes.rows + 1, is_int32=True),
                ArrayField(sizes.words, is_int32=False),
                ArrayField(sizes.keys, is_int32=True),
            ],
            decoder.device,
        )
        tokens_R, self._positions_R, slots_R, items, first_partial, words, keys = self._arrays.tensors
        # outside the graph, because the table moves when it grows
        self._cos_sin = self._rotary.extend_to(0)[:1].repeat(sizes.rows, 1, 1)
        attention = SegmentAttention([items, keys, first_partial, words], sizes.partials, decoder.scale)
        self._fill(batch, plan)
        self._graph, self._output = recorder.record(
            lambda: decoder.forward(tokens_R, self._cos_sin, slots_R, None, attention, pool)
        )

    def run_batch(self, batch: TokenBatch, plan: SegmentPlan) -> Tensor:
        """Returns normed hidden states `[T, hidden]`. *Mutates* the pool."""
        self._fill(batch, plan)
        self._graph.replay()
        # a copy: the next replay writes there, and requests may keep their hidden states
        return self._output[: len(batch.tokens_T)].clone()

    def _fill(self, batch: TokenBatch, plan: SegmentPlan) -> None:
        items, keys, first_partial, words = list_arrays(plan)
        # rows that fill up have no partial results: theirs begin and end where the others end
        ends = np.full(self.sizes.rows + 1, plan.num_partials, dtype=np.int32)
        ends[: len(first_partial)] = first_partial
        self._arrays.fill([batch.tokens_T, batch.positions_T, batch.slots_T, items, ends, words, keys])
        table = self._rotary.extend_to(int(batch.positions_T.max()))
        torch.index_select(table, 0, self._positions_R, out=self._cos_sin)
