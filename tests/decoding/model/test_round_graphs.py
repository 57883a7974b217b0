"""Rounds that are replayed give what eager ones give, in any order, and read nothing of the rounds before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoding.core import Generation, GenerationRequest, SamplingParams
from decoding.device_arrays import FixedArrays, HostArray
from decoding.kv.sequence import TokenSequence
from decoding.model import round_graphs, transformers_checkpoint
from decoding.model.attention_choice import picks_graphs
from decoding.model.backend import TokenBatch
from decoding.model.batch import SequenceInput, pack_segments
from decoding.model.fused_decoder import FusedDecoder
from decoding.model.key_table import KeyTable
from decoding.model.round_graphs import ROW_COUNTS, CudaGraphRecorder, LaunchGraph, RoundGraphs, RoundSizes
from decoding.model.segments import SegmentTiles
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from reason.engines.local import LocalSettings
from tests.support.engines import open_engine
from tests.support.kernels import IS_INTERPRETED, KERNEL_DEVICE
from tests.support.pretended_graphs import PretendedRecorder
from tests.support.radix_rounds import Inputs, random_round, seen_slots
from tests.support.random_models import SHAPE
from tests.support.streams import FutureDrafter

# of an item without rows, in NumPy
pytestmark = pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
only_pretended = pytest.mark.skipif(not IS_INTERPRETED, reason="graphs are pretended, on a CPU")

NUM_SLOTS = 300
TILES = SegmentTiles(5, 64)


def open_backend(attention: str) -> HFBackend:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**{**SHAPE, "vocab_size": 101, "num_hidden_layers": 1, "num_key_value_heads": 1})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.5 if parameter.ndim == 1 else 0.0, std=0.25)
    return HFBackend(model, device=KERNEL_DEVICE, dtype="float32", decoder="eager", attention=attention)


@cache
def decoder() -> FusedDecoder:
    fused = open_backend("segments").decoder
    assert isinstance(fused, FusedDecoder)
    return fused


def draw_round(seed: int, num_sequences: int) -> tuple[Inputs, TokenBatch]:
    """A random round in which every row has an output."""
    inputs = random_round(np.random.default_rng(seed), num_sequences, length=7, nodes=3, num_slots=NUM_SLOTS)
    every_row = [replace(item, first_output=0) for item in inputs]
    batch, ordered = pack_segments(every_row, TILES)
    return list(ordered), batch


def fill_pool(rounds: Sequence[Inputs]) -> Tensor:
    """A pool with numbers in the slots that the rounds see, and NaN elsewhere."""
    pool = decoder().new_kv_pool(NUM_SLOTS)
    slots = sorted({slot for inputs in rounds for item in inputs for row in seen_slots(item) for slot in row})
    numbers = torch.randn(pool[:, :, slots].shape, generator=torch.Generator().manual_seed(1))
    pool.fill_(torch.nan)[:, :, slots] = numbers.to(pool)
    return pool


@pytest.mark.parametrize("seed", range(3))
def test_replayed_rounds_equal_eager_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rounds = [draw_round(int(rng.integers(5000)), num_sequences) for num_sequences in (1, 2, 3)]
    eager_pool = fill_pool([inputs for inputs, _ in rounds])
    pool, pretended = eager_pool.clone(), PretendedRecorder()
    graphs = RoundGraphs(decoder(), pretended if IS_INTERPRETED else CudaGraphRecorder(decoder().device))
    results = []
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        poison_tails(patch)
        for index in [*rng.permutation(3), *rng.integers(3, size=2)]:
            batch = rounds[index][1]
            got, expected = graphs.run_batch(batch, pool), decoder().run_batch(batch, eager_pool)
            results.append((got, expected))
            # the rows that fill up have numbers too; the results of the other graphs are poisoned
            assert sum(int(output.isfinite().all()) for output in pretended.outputs) == IS_INTERPRETED
            # slot 0 is where the K and V of these rows go
            torch.testing.assert_close(pool[:, :, 1:], eager_pool[:, :, 1:], atol=1e-4, rtol=1e-4, equal_nan=True)
    assert pretended.replays == len(results) * IS_INTERPRETED
    # at the end: no replay changes what an earlier one returned
    for got, expected in results:
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def poison_tails(patch: pytest.MonkeyPatch) -> None:
    """What a round's keys do not fill is the number of a slot that holds NaN."""
    fill = FixedArrays.fill

    def fill_over_garbage(self: FixedArrays, arrays: Sequence[HostArray]) -> None:
        self.tensors[-1].fill_(NUM_SLOTS)
        fill(self, arrays)

    patch.setattr(FixedArrays, "fill", fill_over_garbage)


@only_pretended
def test_rounds_of_a_size_share_a_graph() -> None:
    recorder = PretendedRecorder()
    graphs = RoundGraphs(decoder(), recorder)
    inputs, batch = draw_round(3, 2)
    pool = fill_pool([inputs])
    with torch.inference_mode():
        for _ in range(3):
            graphs.run_batch(batch, pool)
        assert (len(recorder.outputs), recorder.replays) == (1, 3)
        graphs.run_batch(batch, pool.clone())  # another pool lies elsewhere
        assert len(recorder.outputs) == 2


@only_pretended
def test_rounds_replay_what_was_recorded_ahead() -> None:
    recorder, table = PretendedRecorder(), KeyTable(NUM_SLOTS)
    graphs = RoundGraphs(decoder(), recorder)
    sequence = TokenSequence(0, tuple(range(40)))
    sequence.append_slots(np.arange(1, 38))
    pool = torch.randn(decoder().new_kv_pool(NUM_SLOTS).shape)
    eager_pool = pool.clone()
    with torch.inference_mode():
        graphs.record_ahead(pool, TILES, table.open_on(decoder().device), rows=5)
        assert (len(recorder.outputs), recorder.replays) == (4, 0)  # of 1, 2, 4 and 8 rows
        for new in (1, 2):
            slots = np.arange(sequence.num_slots + 1, sequence.num_slots + 1 + new)
            inputs = [SequenceInput(sequence, new, slots, 0)]
            got = graphs.run_batch(pack_segments(inputs, TILES, table)[0], pool)
            expected = decoder().run_batch(pack_segments(inputs, TILES)[0], eager_pool)
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
            sequence.append_slots(slots)
    assert (graphs.num_recorded, recorder.replays) == (4, 2)


def long_round(length: int) -> TokenBatch:
    """A branch that feeds the last token of a text, whose slots are those from 1 on."""
    sequence = TokenSequence(0, tuple(at % 97 for at in range(length)))
    sequence.append_slots(np.arange(1, length))
    return pack_segments([SequenceInput(sequence, 1, np.array([length]), 0)], SegmentTiles(5, 256))[0]


@only_pretended
def test_a_graph_is_recorded_again_with_room_for_longer_contexts() -> None:
    recorder, contexts = PretendedRecorder(), (1000, 1030, 900, 1100)
    graphs = RoundGraphs(decoder(), recorder)
    pool = torch.randn(decoder().new_kv_pool(max(contexts)).shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        for length, recorded in zip(contexts, (1, 2, 2, 2), strict=True):
            got, expected = (run(long_round(length), pool) for run in (graphs.run_batch, decoder().run_batch))
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
            assert len(recorder.outputs) == recorded


@only_pretended
def test_a_graph_reads_the_table_of_its_rounds_and_is_recorded_again_when_it_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, table = PretendedRecorder(), KeyTable(1)
    monkeypatch.setattr(round_graphs, "UPDATE_WORDS", 3 * 40)  # the first update of a branch is longer
    graphs, tiles = RoundGraphs(decoder(), recorder), SegmentTiles(5, 256)
    sequence = TokenSequence(0, tuple(at % 97 for at in range(400)))
    sequence.append_slots(np.arange(1, 391))
    capacity, pool = table.capacity, torch.randn(decoder().new_kv_pool(1200).shape)
    with torch.inference_mode():
        for length, recorded in [(390, 1), (391, 1), (392, 1), (900, 2), (901, 2)]:
            sequence.append_tokens([5] * (length + 1 - len(sequence.tokens)))
            sequence.append_slots(np.arange(sequence.num_slots + 1, length + 1))
            inputs = [SequenceInput(sequence, 1, np.array([length + 1]), 0)]
            got = graphs.run_batch(pack_segments(inputs, tiles, table)[0], pool)
            expected = decoder().run_batch(pack_segments(inputs, tiles)[0], pool)
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
            assert len(recorder.outputs) == recorded
    assert recorder.replays == 5
    assert table.capacity > capacity


@only_pretended
def test_rows_without_an_output_and_long_rounds_run_as_they_are() -> None:
    recorder = PretendedRecorder()
    graphs = RoundGraphs(decoder(), recorder)
    inputs, batch = draw_round(3, 2)
    prompt = replace(batch, logits_indices=batch.logits_indices[-1:])
    with torch.inference_mode():
        (row,) = graphs.run_batch(prompt, fill_pool([inputs]))
        assert recorder.replays == 0
        torch.testing.assert_close(row, graphs.run_batch(batch, fill_pool([inputs]))[-1], atol=1e-4, rtol=1e-4)
        assert recorder.replays == 1


class ScarceRecorder(PretendedRecorder):
    """Has no memory for a second graph: the recording breaks, and then its end does too."""

    def record(self, run: Callable[[], Tensor]) -> tuple[LaunchGraph, Tensor]:
        if not self.outputs:
            return super().record(run)
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


@only_pretended
def test_without_memory_for_another_graph_rounds_run_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    recorder = ScarceRecorder()
    graphs = RoundGraphs(decoder(), recorder)
    rounds = [draw_round(3, num_sequences) for num_sequences in (2, 1, 3, 2)]
    pool = fill_pool([inputs for inputs, _ in rounds])
    with torch.inference_mode():
        for _, batch in rounds:
            expected = decoder().run_batch(batch, pool.clone())
            torch.testing.assert_close(graphs.run_batch(batch, pool), expected, atol=1e-4, rtol=1e-4)
    assert (len(recorder.outputs), recorder.replays) == (1, 2)
    (warning,) = caplog.messages
    assert "engine.graphs=never" in warning


@given(st.tuples(st.integers(1, ROW_COUNTS[-1]), *[st.integers(0, 10**6)] * 5))
def test_rounded_sizes_hold_the_round_and_are_few(lengths: tuple[int, int, int, int, int, int]) -> None:
    needed = RoundSizes(*lengths)
    sizes = needed.round_up()
    assert needed.fits_into(sizes)
    assert sizes.rows in ROW_COUNTS
    assert sizes.round_up() == sizes
    least = RoundSizes.least_of(sizes.rows)
    assert sizes.splits <= max(least.splits, 4 * needed.splits)
    for size, length, floor in zip(sizes[2:], needed[2:], least[2:], strict=True):
        assert size <= max(floor, 2 * length)


@pytest.mark.parametrize("least", [(1, 256, 128, 1024, 1024, 1024), (512, 256, 1024, 1024, 2048, 8192)])
def test_least_graphs_have_room_for_a_few_thousand_tokens_a_row(least: tuple[int, ...]) -> None:
    assert RoundSizes.least_of(least[0]) == least


PROMPT = tuple(number * 37 % 97 for number in range(7))
PREFIXES = [PROMPT, (*PROMPT, 5, 6), PROMPT[:3]]


def generate(backend: HFBackend, speculation: Speculation | None = None) -> list[Generation]:
    params = SamplingParams(max_tokens=9)
    requests = [GenerationRequest(prefix=prefix, params=params, seed=seed) for seed, prefix in enumerate(PREFIXES)]
    with open_engine(backend, num_slots=200, max_batched_tokens=15, speculation=speculation) as engine:
        return asyncio.run(engine.generate(requests))


@only_pretended
def test_an_engine_that_replays_has_the_tokens_of_blocks_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate(open_backend("blocks"))
    futures = {seed: prefix + one.tokens for seed, (prefix, one) in enumerate(zip(PREFIXES, expected, strict=True))}
    recorder = PretendedRecorder()
    monkeypatch.setattr(transformers_checkpoint, "picks_graphs", lambda *_: True)
    monkeypatch.setattr(round_graphs, "CudaGraphRecorder", lambda device: recorder)
    got = generate(open_backend("segments"), Speculation(FutureDrafter(futures, 0.3), FixedController(2)))
    assert [one.tokens for one in got] == [one.tokens for one in expected]
    assert recorder.replays > len(recorder.outputs) > 0
    assert sum(one.usage.accepted for one in got) > 0


def test_launches_are_recorded_on_a_stream_of_their_own_after_a_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class FakeStream:
        def __init__(self, name: object) -> None:
            self.name = name

        def wait_stream(self, other: FakeStream) -> None:
            log.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def log_use(*used: object, **options: object) -> Iterator[None]:
        names = [one.name for one in (*used, *options.values()) if isinstance(one, FakeStream)]
        log.append(f"on {' '.join(map(str, names))}{' recorded' if options else ''}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: FakeStream("main"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, log_use)

    def run() -> Tensor:
        log.append("run")
        return torch.zeros(1)

    graph, output = CudaGraphRecorder(torch.device("cuda")).record(run)
    assert str(graph) == "graph"
    assert output.tolist() == [0.0]
    assert log == ["side waits for main", "on side", "run", "main waits for side", "on side recorded", "run"]


def test_auto_is_graphs_on_cuda_with_segments() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert picks_graphs("auto", cuda, has_segments=True)
    assert picks_graphs("always", cuda, has_segments=True)
    assert not picks_graphs("never", cuda, has_segments=True)
    assert not picks_graphs("auto", cuda, has_segments=False)
    assert not picks_graphs("auto", cpu, has_segments=True)


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ("on", "graphs must be one of auto, always, never; got 'on'"),
        ("always", "graphs=always cannot run: .* device is cpu, with segments; set graphs=auto or graphs=never"),
    ],
)
@pytest.mark.skipif(not IS_INTERPRETED, reason="a CPU has segments where kernels are interpreted")
def test_wrong_settings_are_named(graphs: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HFBackend(decoder(), device="cpu", dtype="float32", attention="segments", graphs=graphs)
    with pytest.raises(ValueError, match="graphs must be one of auto, always, never; got 'yes'"):
        LocalSettings(graphs="yes")
