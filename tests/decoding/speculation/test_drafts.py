"""Any draft tree, right, wrong or branching, leaves the output of plain decoding unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.model.batch import ancestor_mask
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.draft import Draft, SamplingRecord
from tests.support.engines import TOKENIZER, mixed_requests
from tests.support.fakes import HashBackend
from tests.support.streams import FutureDrafter


def generate(requests: list[GenerationRequest], oracle: FutureDrafter | None = None, **knobs: Any) -> list[Generation]:
    backend = HashBackend()
    engine = LocalEngine(
        backend,
        decode=TOKENIZER.decode,
        speculation=Speculation() if oracle is None else Speculation(oracle, FixedController(12)),
        **{"kv_bytes": 4000, "eos_ids": [31], **knobs},
    )
    try:
        return asyncio.run(engine.generate(requests))
    finally:
        engine.assert_invariants()
        engine.close()


def plain_and_futures(requests: list[GenerationRequest]) -> tuple[list[Generation], dict[int, tuple[int, ...]]]:
    plain = generate(requests)
    return plain, {r.seed: r.prefix + g.tokens for r, g in zip(requests, plain, strict=True)}


@pytest.mark.parametrize("wrong", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(
    "knobs", [{}, {"kv_bytes": 90}, {"max_batched_tokens": 11}, {"max_running_requests": 2}], ids=str
)
def test_output_equals_plain_decoding(wrong: float, knobs: dict[str, Any]) -> None:
    """Temperatures 0, 0.7 and 1, filters, eos inside a run, limits inside a run, preemption, tight rounds."""
    requests = mixed_requests(30, seed=5)
    plain, futures = plain_and_futures(requests)
    drafted = generate(requests, FutureDrafter(futures, wrong), **knobs)
    assert [(g.tokens, g.finish) for g in drafted] == [(g.tokens, g.finish) for g in plain]
    np.testing.assert_allclose(
        np.concatenate([g.logprobs for g in drafted]), np.concatenate([g.logprobs for g in plain]), atol=1e-5
    )


def test_accepted_drafts_save_forward_passes_and_are_counted() -> None:
    requests = mixed_requests(10)
    plain, futures = plain_and_futures(requests)
    drafted = generate(requests, FutureDrafter(futures, 0.0))
    for before, after in zip(plain, drafted, strict=True):
        assert after.usage.tokens == before.usage.tokens
        assert after.usage.accepted <= after.usage.drafted
        assert after.usage.forwards <= before.usage.forwards
    assert sum(g.usage.forwards for g in drafted) < 0.5 * sum(g.usage.forwards for g in plain)


def test_a_stop_string_inside_an_accepted_run_cuts_there() -> None:
    """Every two-byte text that plain decoding produces is used as a stop string in turn."""
    prefix, params = (1, 2, 3), SamplingParams(max_tokens=30)
    (plain,), futures = plain_and_futures([GenerationRequest(prefix=prefix, params=params, seed=4)])
    for at in range(len(plain.tokens) - 1):
        stop = TOKENIZER.decode(plain.tokens[at : at + 2])
        request = GenerationRequest(prefix=prefix, params=SamplingParams(max_tokens=30, stop=(stop,)), seed=4)
        (expected,), (drafted,) = generate([request]), generate([request], FutureDrafter(futures, 0.0))
        assert (drafted.tokens, drafted.finish) == (expected.tokens, expected.finish)
        assert len(expected.tokens) <= at + 2


def test_observe_sees_every_fed_row_once_with_the_targets_own_distribution() -> None:
    requests = mixed_requests(8)
    plain, futures = plain_and_futures(requests)
    oracle = FutureDrafter(futures, 0.5, feedback_k=4)
    generate(requests, oracle)
    committed = 0
    for outcome in oracle.feedback:
        ids, logprobs = outcome.top_tokens()
        assert ids.shape == logprobs.shape == (1 + len(outcome.draft), 4)
        assert (np.diff(logprobs, axis=1) <= 0).all()
        committed += 1 + len(outcome.accepted_nodes)
    assert committed >= sum(len(g.tokens) for g in plain)


def test_draft_within_keeps_a_tree() -> None:
    draft = Draft((1, 2, 3, 4, 5), (-1, 0, -1, 1, 2))
    assert draft.truncate_to(nodes=9, depth=1) == Draft((1, 3), (-1, -1))
    assert draft.truncate_to(nodes=9, depth=2) == Draft((1, 2, 3, 5), (-1, 0, -1, 2))
    assert draft.truncate_to(nodes=2, depth=9) == Draft((1, 2), (-1, 0))
    assert draft.truncate_to(nodes=0, depth=9) == draft.truncate_to(nodes=5, depth=0) == Draft()


@pytest.mark.parametrize("nodes", [1, 5, 32, 33, 200])
def test_ancestors_against_paths(nodes: int) -> None:
    rng = np.random.default_rng(nodes)
    draft = Draft(tuple(range(nodes)), tuple(int(rng.integers(-1, node)) for node in range(nodes)))
    for _ in range(2):
        for node, row in enumerate(ancestor_mask(draft)):
            assert tuple(np.flatnonzero(row)) == draft.path_to(node)


def test_iid_drafts_lose_whole_levels_or_everything() -> None:
    record = SamplingRecord(
        "iid", {-1: (0, 1, 0), 0: (2, 2)}, {node: (np.arange(9), np.full(9, 1 / 9)) for node in (-1, 0)}
    )
    draft = Draft((5, 6, 7), (-1, -1, 0), sampling_record=record)
    whole_level = draft.truncate_to(nodes=3, depth=1)
    assert whole_level.tokens == (5, 6)
    assert whole_level.sampling_record is not None
    assert whole_level.sampling_record.children == {-1: (0, 1, 0)}
    assert draft.truncate_to(nodes=2, depth=9) == Draft()
    with pytest.raises(AssertionError, match="must not lose some children"):
        draft.select_nodes([0])
