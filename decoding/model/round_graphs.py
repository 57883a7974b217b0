"""Runs small rounds as CUDA graphs: all launches of the layers are recorded once and then repeated by one call.

A layer is ten short kernels, and a launch from Python takes longer than many of them. A graph repeats launches with the
same sizes and addresses. So the rows of a round are filled up to the next of a few counts, its arrays lie at fixed
places, and the splits of its plan are filled up with empty ones: of no rows, for which a program does nothing. Keys
are read from a table that stays where it is; what is new there is written before a graph is replayed.

The rows that fill up have no keys; their K and V go to slot 0, and nothing reads them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from decoding.device_arrays import ArrayField, FixedArrays, HostArray, copy_arrays
from decoding.kv.out_of_memory import MEMORY_ERRORS, is_out_of_memory
from decoding.model.backend import TokenBatch
from decoding.model.fused_decoder import FusedDecoder
from decoding.model.key_table import KeyUpdate
from decoding.model.segment_attention import PLAN_COLUMNS, SegmentAttention, cut_items, list_arrays
from decoding.model.segments import Int32s, SegmentPlan, SegmentTiles
from decoding.triton_operators import round_to_power

log = logging.getLogger(__name__)

ROW_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 208, 256, 320, 384, 512)
"""Rows of a graph. Rounds of more rows compute for so long that their launches do not matter."""
_LEAST_SPLITS, _LEAST_ITEMS, _LEAST_NUMBERS = 256, 128, 1024
"""Of every graph. Splits of no rows are programs that end at once: a few hundred take a microsecond."""
_ROW_ITEMS, _ROW_WORDS, _ROW_PARTIALS = 2, 4, 16
"""The same for each row of a graph: enough for a few thousand tokens of context."""
UPDATE_WORDS = 1 << 16
"""Room for the update of a table among a round's arrays, in words of 32 bits, three a key. One with more keys, as of
branches that start from long prefixes, is copied by itself."""


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
    """Lengths of a round's arrays; `keys` is 0 where they are in a table."""

    rows: int
    splits: int
    items: int
    keys: int
    words: int
    partials: int

    @classmethod
    def of_plan(cls, plan: SegmentPlan) -> RoundSizes:
        """Returns what a plan needs."""
        rows = len(plan.first_partial) - 1
        num_keys = len(plan.keys) if plan.update is None else 0
        return cls(rows, plan.num_splits, len(plan.items.order), num_keys, len(plan.words), plan.num_partials)

    @classmethod
    @cache
    def least_of(cls, rows: int) -> RoundSizes:
        """Returns the least sizes of a graph of so many rows, one of `ROW_COUNTS`."""
        numbers = (max(_LEAST_NUMBERS, round_to_power(per_row * rows)) for per_row in (_ROW_WORDS, _ROW_PARTIALS))
        return cls(rows, _LEAST_SPLITS, max(_LEAST_ITEMS, round_to_power(_ROW_ITEMS * rows)), _LEAST_NUMBERS, *numbers)

    def round_up(self) -> RoundSizes:
        """Returns sizes that many rounds have in common: the next of `ROW_COUNTS`, and powers of four and of two."""
        least = RoundSizes.least_of(ROW_COUNTS[bisect_left(ROW_COUNTS, self.rows)])
        splits = least.splits
        while splits < self.splits:
            splits *= 4
        others = (max(size, round_to_power(needed)) for size, needed in zip(least[2:], self[2:], strict=True))
        return RoundSizes(least.rows, splits, *others)

    def fits_into(self, other: RoundSizes) -> bool:
        """Returns whether no size is larger than its counterpart."""
        return all(size <= limit for size, limit in zip(self, other, strict=True))


_GraphKey = tuple[int, int, bool]
"""Rounded rows and splits of a graph, and whether its rounds have a table of keys."""


class RoundGraphs:
    """Runs a decoder's rounds, small ones by graphs: one per pool, rounded rows and rounded splits.

    Rounds with a table of keys and those without one have graphs of their own.

    Rounds run as they are, by `FusedDecoder.run_batch`, if they have more rows than `ROW_COUNTS`, rows without an
    output (those of a prompt that is being filled), or blocks. A graph is recorded ahead or when a round first needs
    it, until there is no memory for one.

    num_recorded  graphs recorded so far
    """

    def __init__(self, decoder: FusedDecoder, recorder: GraphRecorder) -> None:
        self._decoder, self._recorder = decoder, recorder
        self.num_recorded, self._has_memory = 0, True
        # by pool, for as long as there is the pool
        self._graphs: MutableMapping[Tensor, dict[_GraphKey, RoundGraph]] = WeakTensorKeyDictionary()

    def record_ahead(self, pool: Tensor, tiles: SegmentTiles, keys: Tensor, rows: int) -> None:
        """Records the least graphs of rounds with up to so many rows, whose keys are in a table. *Mutates*.

        The largest first: its intermediate results are the memory of the others.
        """
        graphs = self._graphs.setdefault(pool, {})
        for count in reversed(ROW_COUNTS[: bisect_left(ROW_COUNTS, rows) + 1]):
            sizes = RoundSizes.least_of(count)
            if self._has_memory:
                self._record_graph(graphs, (count, sizes.splits, True), sizes, pool, tiles, keys)

    def run_batch(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        """Returns normed hidden states `[W, hidden]`. *Mutates* `pool`."""
        rows, plan = len(batch.tokens_T), batch.segments
        if plan is None or rows > ROW_COUNTS[-1] or len(batch.logits_indices) < rows:
            return self._decoder.run_batch(batch, pool)
        needed = RoundSizes.of_plan(plan)
        sizes = needed.round_up()
        graphs = self._graphs.setdefault(pool, {})
        key = sizes.rows, sizes.splits, plan.update is not None
        if key in graphs and not graphs[key].can_run(needed, plan):
            # of two graphs of one kind only the larger one would be used, and of two tables only the new one
            del graphs[key]
        if key not in graphs and self._has_memory:
            table = None if plan.update is None else plan.update.table.open_on(self._decoder.device)
            self._record_graph(graphs, key, sizes, pool, plan.tiles, table)
        if key not in graphs:
            return self._decoder.run_batch(batch, pool)
        return graphs[key].run_batch(batch, plan)

    def _record_graph(
        self,
        graphs: dict[_GraphKey, RoundGraph],
        key: _GraphKey,
        sizes: RoundSizes,
        pool: Tensor,
        tiles: SegmentTiles,
        table: Tensor | None,
    ) -> None:
        """Adds a graph to `graphs`, unless there is no memory for it: then no more graphs are recorded. *Mutates*."""
        self.num_recorded += 1
        try:
            graph = RoundGraph(self._decoder, sizes, pool, tiles, table, self._recorder)
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
            graphs[key] = graph


class RoundGraph:
    """Runs the rounds of one decoder and pool whose arrays are of some sizes or shorter.

    While the launches are recorded, rows that only fill up are computed.

    table   the slots of the keys of all rounds; None where each round brings its own
    """

    def __init__(
        self,
        decoder: FusedDecoder,
        sizes: RoundSizes,
        pool: Tensor,
        tiles: SegmentTiles,
        table: Tensor | None,
        recorder: GraphRecorder,
    ) -> None:
        self.sizes, self._rotary, self._device, self._tiles = sizes, decoder.rotary, decoder.device, tiles
        rows = ArrayField(sizes.rows, is_int32=False)
        self._arrays = FixedArrays(
            [
                *(rows, rows, rows),
                ArrayField(sizes.items * PLAN_COLUMNS, is_int32=True),
                ArrayField(sizes.rows + 1, is_int32=True),
                ArrayField(sizes.words, is_int32=False),
                ArrayField(sizes.keys if table is None else UPDATE_WORDS, is_int32=True),
            ],
            decoder.device,
        )
        tokens_R, self._positions_R, slots_R, items, first_partial, words, self._tail = self._arrays.tensors
        # the keys of a round, or its table, which is longer than any round
        self._keys = self._tail if table is None else table
        # outside the graph, because the table moves when it grows
        self._cos_sin = self._rotary.extend_to(0)[:1].repeat(sizes.rows, 1, 1)
        keys, split_keys, cos_sin = self._keys, tiles.num_keys, self._cos_sin

        def run() -> Tensor:
            splits = cut_items(items, sizes.splits, split_keys)
            attention = SegmentAttention([splits, keys, first_partial, words], sizes.partials, decoder.scale)
            return decoder.forward(tokens_R, cos_sin, slots_R, None, attention, pool)

        self._graph, self._output = recorder.record(run)

    def can_run(self, needed: RoundSizes, plan: SegmentPlan) -> bool:
        """Returns whether the graph runs a round: it fits, is cut alike, and its table, if any, is where it was."""
        is_there = plan.update is None or plan.update.table.open_on(self._device) is self._keys
        return is_there and plan.tiles == self._tiles and needed.fits_into(self.sizes)

    def run_batch(self, batch: TokenBatch, plan: SegmentPlan) -> Tensor:
        """Returns normed hidden states `[T, hidden]`. *Mutates* the pool, and the table of the plan."""
        self._fill(batch, plan)
        self._graph.replay()
        # a copy: the next replay writes there, and requests may keep their hidden states
        return self._output[: len(batch.tokens_T)].clone()

    def _fill(self, batch: TokenBatch, plan: SegmentPlan) -> None:
        items, _, first_partial, words, *_ = list_arrays(plan)
        # items that fill up have no splits: theirs end where those of the last one do
        all_items = np.zeros((self.sizes.items, PLAN_COLUMNS), dtype=np.int32)
        all_items[:, -1] = items[-1]
        all_items.reshape(-1)[: len(items)] = items
        # rows that fill up have no partial results: theirs begin and end where the others end
        ends = np.full(self.sizes.rows + 1, plan.num_partials, dtype=np.int32)
        ends[: len(first_partial)] = first_partial
        arrays: list[HostArray] = [batch.tokens_T, batch.positions_T, batch.slots_T, all_items.reshape(-1), ends, words]
        if plan.update is None:
            self._arrays.fill([*arrays, plan.keys])
        else:
            self._fill_with_update(arrays, plan.keys, plan.update)
        table = self._rotary.extend_to(int(batch.positions_T.max()))
        torch.index_select(table, 0, self._positions_R, out=self._cos_sin)

    def _fill_with_update(self, arrays: Sequence[HostArray], keys: Int32s, update: KeyUpdate) -> None:
        """Copies the arrays, and the keys into their table; in one copy, if the update is not too long for that."""
        count, tail = len(keys), self._tail
        if 3 * count <= len(tail):
            # positions first: as int64 they must be aligned
            self._arrays.fill([*arrays, np.concatenate([update.positions.view(np.int32), keys])])
            positions_U, keys_U = tail[: 2 * count].view(torch.int64), tail[2 * count : 3 * count]
        else:
            self._arrays.fill([*arrays, keys[:0]])
            positions_U, keys_U = copy_arrays([update.positions, keys], self._device)
        update.table.write(positions_U, keys_U)
