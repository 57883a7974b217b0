"""Sources that are combined: which is asked where, what is dropped, and that no text and no law changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.round import Speculation
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.hybrid import HybridSource, drop_unlikely
from decoding.speculation.drafters.score_fallback import ScoreFallback
from decoding.speculation.drafters.source import DraftSource, NextTokens
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, DraftPlan, Feedback
from tests.support.draft_sources import FakeSource, branch
from tests.support.engines import TOKENIZER
from tests.support.enumeration import Instance, draw_tree, enumerate_drafts
from tests.support.fakes import HashBackend


@dataclass
class CountingSource(FakeSource):
    """Records how many contexts it was asked for, call by call, and has a score for every branch."""

    sizes: list[int] = field(default_factory=list)
    scores: Sequence[float] = ()

    def next_tokens(self, state: Any) -> NextTokens:
        self.sizes.append(len(state))
        return super().next_tokens(state)

    def draft_scores(self, state: Any) -> Any:
        return np.array(self.scores, dtype=np.float32)


def candidates(rows: Sequence[dict[int, float]], width: int = 6) -> NextTokens:
    ids, logp = np.full((len(rows), width), -1), np.full((len(rows), width), -np.inf, dtype=np.float32)
    for row, entries in enumerate(rows):
        for k, (token, p) in enumerate(sorted(entries.items(), key=lambda one: -one[1])):
            ids[row, k], logp[row, k] = token, np.log(max(p, 1e-30))
    return NextTokens(ids.astype(np.int64), logp, np.zeros(len(rows), dtype=np.int64))


def as_dicts(tokens: NextTokens) -> list[dict[int, float]]:
    rows = zip(tokens.ids_FK.tolist(), np.exp(tokens.logp_FK).tolist(), strict=True)
    return [{t: round(p, 4) for t, p in zip(ids, ps, strict=True) if t >= 0} for ids, ps in rows]


DISTRIBUTIONS = st.dictionaries(st.integers(0, 9), st.sampled_from([0.01, 0.05, 0.1, 0.16]), max_size=6)


@given(
    st.lists(st.tuples(DISTRIBUTIONS, DISTRIBUTIONS), min_size=1, max_size=4), st.sampled_from([0.0, 0.04, 0.09, 1.0])
)
@settings(max_examples=200, deadline=None)
def test_retrieved_tokens_remain_where_the_judge_finds_them_likely_enough(
    pairs: list[tuple[dict[int, float], dict[int, float]]], least: float
) -> None:
    retrieved, judges = zip(*pairs, strict=True)
    remaining = drop_unlikely(candidates(retrieved), candidates(judges), least)
    assert as_dicts(remaining) == [
        {token: p for token, p in row.items() if not judge or judge.get(token, 0.0) >= least - 1e-6}
        for row, judge in pairs
    ]
    assert ((remaining.ids_FK[:, 1:] >= 0) <= (remaining.ids_FK[:, :-1] >= 0)).all(), "padding last"
    assert (remaining.logp_FK[:, 1:] <= remaining.logp_FK[:, :-1]).all(), "best first"


def walk(source: DraftSource, levels: int, contexts: int = 2) -> list[NextTokens]:
    """Follows the best candidate of each context."""
    state = source.root_states([branch((i, 1, 2), i) for i in range(contexts)])
    walked = []
    for _ in range(levels):
        walked.append(source.next_tokens(state))
        state = source.advance(state, walked[-1].ids_FK[:, 0])
    return walked


def test_below_its_levels_the_first_source_is_not_asked() -> None:
    first, second = CountingSource(reads=2), CountingSource(reads=1)
    walked = walk(HybridSource((first, second), first_levels=2), levels=5)
    assert first.sizes == [2, 2]
    assert second.sizes == [2] * 5
    alone = [set(row) for row in as_dicts(second.next_tokens(second.root_states([branch((9, 9, 7), 0)])))]
    for level in walked[2:]:
        assert all(len(row) == len(alone[0]) for row in as_dicts(level)), "all of the second's, and no others"


def test_no_candidate_of_another_source_is_left_that_the_first_finds_unlikely() -> None:
    model, retrieval = FakeSource(vocabulary=16, known=16, reads=2), FakeSource(vocabulary=16, known=4, reads=1)
    least, states = 0.05, [branch((i, 3), i) for i in range(12)]
    (tokens,) = [source.next_tokens(source.root_states(states)) for source in (model,)]
    fused = HybridSource((model, retrieval), width=16, first_must_agree=least)
    alone = HybridSource((model, retrieval), width=16)
    pruned, whole = (as_dicts(source.next_tokens(source.root_states(states))) for source in (fused, alone))
    dropped = 0
    for judge, some, everything in zip(as_dicts(tokens), pruned, whole, strict=True):
        assert set(some) == set(everything), "the first source proposes each of them itself"
        lighter = {token for token in some if some[token] < everything[token] - 1e-4}
        assert all(judge[token] < least + 1e-4 for token in lighter), "they lose what the retrieval added"
        dropped += len(lighter)
    assert dropped > 10


def test_each_branch_is_drafted_by_the_source_of_its_score() -> None:
    first, second = CountingSource(reads=1, known=3, scores=[5.0, 0.0, 3.0]), CountingSource(reads=2, known=5)
    source = ScoreFallback((first, second), least_score=3.0)
    branches = [branch((i, 4, i), i) for i in range(3)]
    state = source.root_states(branches)
    rows = as_dicts(source.next_tokens(state))
    assert [len(row) for row in rows] == [3, 5, 3]
    assert (first.sizes, second.sizes) == ([2], [1]), "each for its own contexts only"
    again = source.next_tokens(source.advance(state[np.array([1, 1, 0])], np.array([3, 4, 5])))
    assert [len(row) for row in as_dicts(again)] == [5, 5, 3]
    assert set(again.trust_F[:2].tolist()).isdisjoint(again.trust_F[2:].tolist())


def test_wrong_sources_are_named() -> None:
    fake, suffix = FakeSource(), SuffixDecoding()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: ScoreFallback((suffix,)), "sources must name two, got 1"),
        (lambda: ScoreFallback((fake, suffix)), "the first of the sources must tell its score"),
        (lambda: ScoreFallback((suffix, TokenRecycling())), "both of the sources must have probabilities"),
        (lambda: ScoreFallback((suffix, fake), least_score=-1), "least_score must be a number >= 0, got -1"),
        (lambda: HybridSource((fake, suffix), first_levels=0), "first_levels must be an int >= 1 or null, got 0"),
        (lambda: HybridSource((fake, suffix), first_must_agree=2.0), r"first_must_agree must be in \[0, 1\], got 2.0"),
        (lambda: HybridSource((TokenRecycling(), suffix), first_must_agree=0.1), "must be 0 where the first source on"),
    ]
    for make, message in wrong:
        with pytest.raises(ValueError, match=message):
            make()


REQUESTS = [
    GenerationRequest(
        prefix=(1, 2, 3, 1, 2), params=SamplingParams(max_tokens=24, temperature=t), seed=seed % 3, group=str(seed % 2)
    )
    for seed, t in enumerate([0.0, 0.6, 1.0, 0.6, 0.0, 1.0, 0.6])
]


def generate(source: DraftSource | None, **given: Any) -> list[Generation]:
    parts = None if source is None else Speculation(TreeDrafter(source), FixedController(6))
    knobs = {"kv_bytes": 3000, "eos_ids": [31], **given}
    engine = LocalEngine(HashBackend(32, scale=3.0), decode=TOKENIZER.decode, speculation=parts, **knobs)
    try:
        return asyncio.run(engine.generate(REQUESTS))
    finally:
        engine.assert_invariants()
        engine.close()


COMBINED: dict[str, Callable[[DraftSource], DraftSource]] = {
    "rasd": lambda model: HybridSource(
        (model, SuffixDecoding(across_groups="finished")), first_levels=2, first_must_agree=0.05
    ),
    "suffix_draft_model": lambda model: ScoreFallback((SuffixDecoding(across_groups="finished"), model), 1.0),
}


@pytest.mark.parametrize("make", COMBINED.values(), ids=COMBINED)
@pytest.mark.parametrize("scale", [3.0, 1.0], ids=["itself", "another"])
@pytest.mark.parametrize("knobs", [{}, {"kv_bytes": 260}, {"max_running_requests": 2}], ids=["", "narrow", "few"])
def test_texts_are_those_of_plain_decoding(
    make: Callable[[DraftSource], DraftSource], scale: float, knobs: dict[str, Any]
) -> None:
    source = make(DraftModel(HashBackend(32, scale=scale), k=8, kv_bytes=3000))
    done, expected = generate(source, **knobs), generate(None)
    assert [(one.tokens, one.finish) for one in done] == [(one.tokens, one.finish) for one in expected]
    assert sum(one.usage.drafted for one in done) > 0
    assert scale == 1.0 or sum(one.usage.accepted for one in done) > 0.3 * sum(one.usage.tokens for one in done)


@pytest.mark.parametrize("seed", range(3))
def test_draws_from_a_pruned_distribution_keep_the_law(seed: int) -> None:
    """Exactly, because what was dropped does not depend on the draw; `test_known_bugs` has the drawn tokens dropped."""
    instance = Instance.random(seed)
    pruned = {}
    for context, q in instance.q.items():
        judge = candidates([{token: float(p) for token, p in enumerate(instance.p[context])}])
        drafted = candidates([{token: float(p) for token, p in enumerate(q)}])
        left = drop_unlikely(drafted, judge, 0.2).ids_FK[0]
        remaining = np.array([p if token in left else 0 * p for token, p in enumerate(q)])
        pruned[context] = remaining / remaining.sum() if remaining.sum() else q
    draw = partial(draw_tree, "without_replacement", (1, 1), pruned)
    report = enumerate_drafts(instance, lambda stream: draw(stream), RecursiveRejection().verify_tree)
    assert report.distance == 0


@pytest.mark.parametrize("is_late", [False, True])
def test_precision_is_measured_where_outcomes_come_after_the_next_drafts_too(is_late: bool) -> None:
    """As on a GPU, where the next round is drafted while the outcome of one is on its way."""

    class After(FakeSource):
        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

        def root_states(self, branches: Sequence[Branch]) -> Any:
            return np.array([branch.tokens[-1] for branch in branches])

        def next_tokens(self, state: Any) -> NextTokens:
            return candidates([{int(token + self.step) % 9: 0.9} for token in state])

        def advance(self, state: Any, tokens_F: Any) -> Any:
            return tokens_F

    right, wrong = After(1), After(3)
    source, text, late = HybridSource((right, wrong)), [3], list[Feedback]()
    drafter = TreeDrafter(source, draw="coupled", depth=2)
    for _ in range(60):
        one = branch(tuple(text))
        (draft,) = drafter.propose([one], DraftPlan((2,), 2))
        drafter.observe(late)
        rows = [text[-1], *draft.tokens]
        logprobs = np.full((len(rows), 1), -0.1, dtype=np.float32)
        outcome = Feedback(one, draft, (), np.array([[(token + 1) % 9] for token in rows]), logprobs)
        if is_late:
            late = [outcome]
        else:
            drafter.observe([outcome])
        text.append((text[-1] + 1) % 9)
    states = source.root_states([branch((4,))])
    merged = as_dicts(source.next_tokens(states))[0]
    assert merged[5] > 0.85
    assert merged.get(7, 0) < 0.1
