"""Reflective verification: the check below a draft, the mixture of both readings, and rounds that commit no check."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.round import Speculation
from decoding.sampling_batch import SamplingBatch
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.reflective import (
    ReflectingDrafter,
    Reflective,
    add_check,
    drop_check,
    pair_readings,
)
from decoding.speculation.controllers.chain import ChainController
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback
from decoding.speculation.target_logits import TargetLogits
from tests.support.engines import TOKENIZER
from tests.support.fakes import HashBackend

PROMPT = (7, 8)
VOCABULARY = 32


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Trees whose siblings differ, with probabilities or without."""
    size = draw(st.integers(0, 7))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    probabilities: list[float] = []
    for parent in parents:
        probabilities.append((probabilities[parent] if parent >= 0 else 1.0) * draw(st.sampled_from([1.0, 0.5])))
    return Draft(tuple(range(size)), parents, tuple(probabilities) if draw(st.booleans()) else ())


@given(drafts(), st.integers(0, 20), st.integers(0, 20))
def test_check_repeats_a_path_and_any_cut_leaves_the_draft_and_a_part_of_it(
    draft: Draft, nodes: int, depth: int
) -> None:
    checked = add_check(draft, PROMPT).truncate_to(nodes=nodes, depth=depth)
    checked.assert_invariants()
    assert drop_check(checked) == draft.truncate_to(nodes=nodes, depth=depth)
    for at, (node, second) in enumerate(pair_readings(checked)):
        if node < 0:
            assert checked.tokens[second] == PROMPT[-1]
        else:
            assert checked.depths[node] == at
            assert checked.tokens[node] == checked.tokens[second]
            assert checked.labels[second] == 2
    whole = pair_readings(add_check(draft, PROMPT))
    assert len(whole) == (0 if not len(draft) else 1 + draft.depths[whole[-1][0]])


def random_target(made: Sequence[Draft], params: SamplingParams, seed: int) -> TargetLogits:
    sizes = [1 + len(draft) for draft in made]
    logits = torch.randn(sum(sizes), 12, generator=torch.Generator().manual_seed(seed)) * 2
    sampling = SamplingBatch.from_params([params] * sum(sizes), [seed] * sum(sizes), list(range(sum(sizes))))
    return TargetLogits(logits, sampling, tuple(np.cumsum([0, *sizes])[:-1].tolist()))


def branch(request_id: int) -> Branch:
    return Branch(request_id, "p", (1, 2), request_id, SamplingParams(), 50)


TREES = [Draft((5, 6, 7), (-1, -1, 0)), Draft((3, 4, 5), (-1, 0, 1)), Draft()]


@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_result_is_coupled_acceptance_of_the_mixture(weight: float, temperature: float) -> None:
    num_other = 0
    for seed in range(20):
        params = SamplingParams(temperature=temperature)
        checked = [add_check(draft, PROMPT) for draft in TREES]
        target = random_target(checked, params, seed)
        logits, rows, firsts = target.logits_WV.numpy().astype(np.float64), list[int](), list[int]()
        mixed = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        readings = mixed.copy()
        for first, draft, tree in zip(target.first_rows, checked, TREES, strict=True):
            firsts.append(len(rows))
            rows += range(first, first + 1 + len(tree))
            for node, second in pair_readings(draft):
                both = readings[first + 1 + node], readings[first + 1 + second]
                mixed[first + 1 + node] = (1 - weight) * both[0] + weight * both[1]
        expected_target = TargetLogits(
            torch.from_numpy(mixed[rows]).float(), target.sampling.select_rows(np.array(rows)), tuple(firsts)
        )
        branches = [branch(i) for i in range(len(TREES))]
        results = Reflective(weight=weight).verify_drafts(branches, checked, target)
        expected = Coupled().verify_drafts(branches, TREES, expected_target)
        plain = Coupled().verify_drafts(branches, TREES, replace(expected_target, logits_WV=target.logits_WV[rows]))
        assert [(r.accepted_nodes, r.tokens) for r in results] == [(r.accepted_nodes, r.tokens) for r in expected]
        for one, other in zip(results, expected, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        num_other += [r.tokens for r in results] != [r.tokens for r in plain]
        assert results[-1].tokens == plain[-1].tokens  # nothing was drafted, so there is no second reading
    assert (num_other == 0) == (weight == 0)


@dataclass
class RepeatingDrafter:
    """Drafts what followed the last token before; keeps what it proposed and what it learned."""

    feedback_k: int = 2
    proposed: list[Draft] = field(default_factory=list)
    learned: list[Feedback] = field(default_factory=list)

    def propose(self, branches: Sequence[Branch], plan: DraftPlan) -> list[Draft]:
        made = []
        for one, size in zip(branches, plan.max_nodes, strict=True):
            tokens = tuple(one.tokens)
            ahead = tuple((tokens[-1] + 1 + i) % VOCABULARY for i in range(size))
            made.append(Draft(ahead, tuple(range(-1, size - 1)), labels=tuple(range(100, 100 + size))))
        self.proposed += made
        return made

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.learned += feedback


def generate(drafter: ReflectingDrafter | None, weight: float, **knobs: int) -> tuple[list[Generation], LocalEngine]:
    parts = None if drafter is None else Speculation(drafter, ChainController(length=4), Reflective(weight=weight))
    given: dict[str, Any] = {"kv_bytes": 600, **knobs}
    engine = LocalEngine(
        HashBackend(VOCABULARY, scale=1.0), decode=TOKENIZER.decode, eos_ids=[31], speculation=parts, **given
    )
    params = SamplingParams(max_tokens=24)
    requests = [GenerationRequest(prefix=(1, 2, 3), params=params, seed=seed, group="a") for seed in range(6)]
    try:
        return asyncio.run(engine.generate(requests)), engine
    finally:
        engine.assert_invariants()
        engine.close()


@pytest.mark.parametrize("knobs", [{}, {"max_batched_tokens": 13}, {"kv_bytes": 90}], ids=str)
def test_at_weight_zero_the_engine_writes_what_plain_decoding_writes(knobs: dict[str, int]) -> None:
    expected, _ = generate(None, 0.0)
    drafter = RepeatingDrafter()
    done, engine = generate(ReflectingDrafter(drafter, PROMPT), 0.0, **knobs)
    assert [(g.tokens, g.finish) for g in done] == [(g.tokens, g.finish) for g in expected]
    assert engine.stats.drafted > sum(map(len, (feedback.draft for feedback in drafter.learned)))  # there were checks


def test_drafter_learns_of_its_own_nodes_alone() -> None:
    drafter = RepeatingDrafter()
    generate(ReflectingDrafter(drafter, PROMPT), 0.5)
    assert drafter.learned
    for feedback in drafter.learned:
        size = len(feedback.draft)
        assert feedback.draft.labels == tuple(range(100, 100 + size))
        assert all(node < size for node in feedback.accepted_nodes)
        assert len(feedback.top_tokens()[0]) == len(feedback.top_tokens()[1]) == 1 + size
        assert any(feedback.draft.tokens == draft.tokens[:size] for draft in drafter.proposed)


def test_second_reading_changes_texts_and_accepts_as_the_target_samples() -> None:
    plain, _ = generate(None, 0.0)
    mixed, engine = generate(ReflectingDrafter(RepeatingDrafter(), PROMPT), 0.9)
    assert [g.tokens for g in mixed] != [g.tokens for g in plain]
    assert 0 < engine.stats.accepted < engine.stats.drafted


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"weight": 1.5}, r"weight must be in \[0, 1\], got 1.5"), ({"prompt": ""}, "prompt must be a text that is not")],
)
def test_wrong_setting_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reflective(**settings)  # type: ignore[arg-type]
