"""Hidden states in a drafter's feedback: those of `Generation.hidden` for every committed token, in any batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from decoding.core import GenerationRequest, Vector
from decoding.model.backend import Backend, TokenBatch
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from decoding.sglang_plugin.parts import SpeculativeParts, make_parts
from decoding.speculation.acceptance.reflective import ReflectingDrafter
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.draft_walks import WalkDrafter
from decoding.speculation.drafters.hybrid import HybridSource
from decoding.speculation.drafters.score_fallback import ScoreFallback
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Drafter, Feedback, reads_hidden
from tests.support.draft_sources import FakeSource
from tests.support.engines import make_request, open_engine
from tests.support.fakes import HashBackend
from tests.support.random_models import random_model
from tests.support.streams import FutureDrafter


class StateBackend(HashBackend):
    """The hash of `HashBackend` as a hidden state `[W, 4]`: exact numbers of 16 bits each."""

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        words = super().forward(batch, pool).numpy().view(np.uint16).reshape(-1, 4)
        return torch.from_numpy(words.astype(np.float32))

    def apply_head(self, hidden: Tensor) -> Tensor:
        return super().apply_head(torch.from_numpy(hidden.numpy().astype(np.uint16).view(np.int64)[:, 0]))


@cache
def open_model(name: str) -> Backend:
    return StateBackend() if name == "toy" else HFBackend(random_model(name), device="cpu", dtype="float32")


@dataclass
class ReadingDrafter(FutureDrafter):
    """Reads hidden states."""

    reads_hidden: ClassVar[bool] = True


def make_requests() -> list[GenerationRequest]:
    """Branches of two problems, some of which a text or a token stops before their limit."""
    requests = []
    for seed in range(8):
        choices: list[dict[str, Any]] = [{"stop_token_ids": (14, 24)}, {"stop": ("\x0e", "\x10\x1d")}, {}]
        stops = choices[seed % 3]
        prefix = (3 + seed % 2, 1, 4, 1, 5, *range(seed % 3))
        requests.append(make_request(prefix, seed, max_tokens=5 + seed, temperature=[1.0, 0.0][seed % 2], **stops))
    return requests


@cache
def expected_states(model: str) -> Mapping[int, list[Vector]]:
    """By seed, `Generation.hidden` of plain requests that end with the first token, the second, and so on."""
    states: dict[int, list[Vector]] = {}
    with open_engine(open_model(model)) as engine:
        for request in make_requests():
            (whole,) = asyncio.run(engine.generate([request]))
            for length in range(1, len(whole.tokens) + 1):
                params = replace(request.params, max_tokens=length)
                (part,) = asyncio.run(engine.generate([replace(request, params=params, hidden=True)]))
                assert part.tokens == whole.tokens[:length]
                assert part.hidden is not None
                states.setdefault(request.seed, []).append(part.hidden)
    return states


def observe(model: str, drafter: FutureDrafter, nodes: int, **knobs: Any) -> list[Feedback]:
    """Runs all requests together; returns what the drafter has observed, in the order of rounds."""
    requests = make_requests()
    with open_engine(open_model(model)) as engine:
        texts = asyncio.run(engine.generate(requests))
        # beyond the end, so that a stop cuts what a round has accepted
        endless = [replace(r, params=replace(r.params, max_tokens=20, stop=(), stop_token_ids=())) for r in requests]
        futures = asyncio.run(engine.generate(endless))
        drafter.futures = {r.seed: (*r.prefix, *g.tokens) for r, g in zip(requests, futures, strict=True)}
    parts = Speculation(drafter, FixedController(nodes))
    with open_engine(open_model(model), speculation=parts, **knobs) as engine:
        drafted = asyncio.run(engine.generate(requests))
        assert [g.tokens for g in drafted] == [g.tokens for g in texts]
        assert (engine.stats.accepted > 0) == (nodes > 0)
    return drafter.feedback


@pytest.mark.parametrize("nodes", [0, 8])
@pytest.mark.parametrize(
    "knobs", [{}, {"max_running_requests": 1}, {"max_batched_tokens": 9}, {"num_slots": 50}], ids=str
)
@pytest.mark.parametrize("model", ["toy", "qwen2"])
def test_feedback_has_the_hidden_state_of_every_committed_token(model: str, knobs: dict[str, Any], nodes: int) -> None:
    states: dict[int, list[Vector]] = {}
    for feedback in observe(model, ReadingDrafter({}, wrong=0.1), nodes, **knobs):
        assert feedback.hidden is not None
        assert feedback.hidden.dtype == np.float32
        states.setdefault(feedback.branch.seed, []).extend(feedback.hidden)
    expected = expected_states(model)
    assert {seed: len(rows) for seed, rows in states.items()} == {seed: len(rows) for seed, rows in expected.items()}
    for seed, rows in expected.items():
        np.testing.assert_allclose(states[seed], rows, atol=0 if model == "toy" else 1e-4)


class CountedTensor(Tensor):
    """Counts the operations on itself."""

    operations: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "__get__" not in str(func):  # attributes such as its number of dimensions
            cls.operations.append(func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class CountedBackend(StateBackend):
    """Gives out hidden states that count what is done to them, and reads them itself unseen."""

    def forward(self, batch: TokenBatch, pool: Tensor) -> Tensor:
        return super().forward(batch, pool).as_subclass(CountedTensor)

    def apply_head(self, hidden: Tensor) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return super().apply_head(hidden.as_subclass(Tensor))


@pytest.mark.parametrize("drafter", [FutureDrafter({}, 0.3, feedback_k=4), ReadingDrafter({}, 0.3)], ids=reads_hidden)
def test_hidden_states_are_touched_only_where_a_drafter_reads_them(drafter: FutureDrafter) -> None:
    CountedTensor.operations.clear()
    request = make_request((3, 1, 4), max_tokens=9)
    drafter.futures = {request.seed: (3, 1, 4)}
    with open_engine(CountedBackend(), speculation=Speculation(drafter, FixedController(4))) as engine:
        asyncio.run(engine.generate([request]))
    assert bool(CountedTensor.operations) == reads_hidden(drafter)
    assert {each.hidden is not None for each in drafter.feedback} == {reads_hidden(drafter)}


@dataclass
class ReadingSource(FakeSource):
    """Reads hidden states."""

    reads_hidden: ClassVar[bool] = True


WRAPPERS: dict[str, Any] = {
    "tree": TreeDrafter,
    "walks": WalkDrafter,
    "hybrid": lambda source: TreeDrafter(HybridSource((Stand(), source))),
    "fallback": lambda source: TreeDrafter(ScoreFallback((SuffixDecoding(), source))),
    "reflecting": lambda source: ReflectingDrafter(TreeDrafter(source), (7, 8)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_source_inside_any_drafter_gets_hidden_states_if_it_reads_them(name: str) -> None:
    assert not reads_hidden(WRAPPERS[name](FakeSource(vocabulary=32)))
    source = ReadingSource(vocabulary=32)
    drafter: Drafter = WRAPPERS[name](source)
    with open_engine(StateBackend(), speculation=Speculation(drafter, FixedController(4))) as engine:
        (generation,) = asyncio.run(engine.generate([make_request((3, 1, 4), max_tokens=9)]))
    hidden = [each.hidden for each in source.received if each.hidden is not None]
    assert len(hidden) == len(source.received)
    assert sum(map(len, hidden)) == len(generation.tokens)


def test_engine_whose_model_gives_no_hidden_states_refuses_a_drafter_that_reads_them() -> None:
    speculation = Speculation(ReadingDrafter({0: (3,)}, 1.0), FixedController(4))
    with (
        open_engine(HashBackend(), speculation=speculation) as engine,
        pytest.raises(ValueError, match=r"reads the target's hidden states .* and this backend gives none"),
    ):
        asyncio.run(engine.generate([make_request((3,))]))


def test_server_of_sglang_refuses_a_drafter_that_reads_hidden_states() -> None:
    parts = make_parts(8, "coupled")
    with pytest.raises(ValueError, match="ReadingSource reads the target's hidden states, and SGLang gives none"):
        SpeculativeParts(TreeDrafter(ReadingSource()), parts.acceptance, 8, parts.table)
