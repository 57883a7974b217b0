"""Every engine loop runs on a stream of its own, after what was made on the default stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest
import torch

from decoding.core import GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.kv.out_of_memory import OutOfMemory
from decoding.model.device_stream import DeviceStream
from decoding.model.transformers_checkpoint import HFBackend
from decoding.prefill import PrefillEngine
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from tests.support.pretended_gpu import PretendedGpu
from tests.support.random_models import open_gpu_backend

PROMPT: Tokens = (3, 1, 4, 1, 5)
REQUEST = GenerationRequest(prefix=PROMPT, params=SamplingParams(max_tokens=6), seed=1)


@contextmanager
def open_engine(backend: HFBackend, speculation: Speculation | None = None) -> Iterator[LocalEngine]:
    with closing(LocalEngine(backend, decode=str, kv_bytes=1 << 18, speculation=speculation)) as engine:
        yield engine


def test_a_loop_waits_for_the_default_stream_once(gpu: PretendedGpu) -> None:
    with open_engine(open_gpu_backend()) as engine:
        assert set(gpu.streams.launches) == {"default"}
        for _ in range(2):
            asyncio.run(engine.generate([REQUEST]))
            engine.assert_invariants()
    waking = ["on cuda:0", "on stream 1"]
    idle = ["host waits for stream 1", "off stream 1"]
    assert gpu.streams.log == [*waking, "stream 1 waits for default", *idle, *waking, *idle]


def test_nothing_of_a_round_is_launched_elsewhere(gpu: PretendedGpu) -> None:
    """Engine, draft model, reward model and small model; each has launches, and a loop has one stream."""
    with ExitStack() as stack:
        drafts = DraftModel(open_gpu_backend(), k=3, kv_bytes=1 << 18)
        speculation = Speculation(TreeDrafter(drafts, width=2, depth=2), FixedController(3))
        engine, small = (stack.enter_context(open_engine(open_gpu_backend(), s)) for s in (speculation, None))
        reader = stack.enter_context(closing(PrefillEngine(open_gpu_backend(), kv_bytes=1 << 18)))
        loaded = gpu.streams.launches["default"]
        for one in (engine, small):
            asyncio.run(one.generate([REQUEST, replace(REQUEST, seed=2)]))
        asyncio.run(reader.encode([PROMPT], [0]))
        assert drafts.num_fed_tokens
    assert gpu.streams.launches["default"] == loaded
    assert {stream for _, stream in gpu.streams.of_threads} == {"default", "stream 1", "stream 2", "stream 3"}
    of_loops = [(thread, stream) for thread, stream in gpu.streams.of_threads if stream != "default"]
    assert sorted(of_loops) == [("engine_0", "stream 1"), ("engine_0", "stream 2"), ("reader_0", "stream 3")]


def test_loops_of_one_model_share_its_stream(gpu: PretendedGpu) -> None:
    """Its table of rotations and its graphs serve all of them. And streams are few: a warm-up makes many engines."""
    backend = open_gpu_backend()
    for _ in range(3):
        with open_engine(backend) as engine:
            asyncio.run(engine.generate([REQUEST]))
    assert set(gpu.streams.launches) == {"default", "stream 1"}
    assert gpu.streams.log.count("stream 1 waits for default") == 3


def test_failed_rounds_and_closing_leave_no_work_on_the_stream(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_gpu_backend()
    with open_engine(backend) as engine:
        with monkeypatch.context() as patched:
            patched.setattr(backend, "apply_head", fail)
            with pytest.raises(OutOfMemory):
                asyncio.run(engine.generate([REQUEST]))
        (generation,) = asyncio.run(engine.generate([REQUEST]))
        assert len(generation.tokens) == 6
        engine.close()
        assert gpu.streams.log[-2:] == ["host waits for stream 1", "off stream 1"]


def fail(hidden: torch.Tensor) -> torch.Tensor:
    raise OutOfMemory("none")


def test_a_cpu_has_no_stream() -> None:
    stream = DeviceStream(object(), torch.device("cpu"))
    with stream.use():
        assert not torch.zeros(1).is_cuda
