"""Which children of a node are selected, and with which probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from decoding.core import SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.noise import gumbel_noise, gumbel_of_token, noise_keys
from decoding.round import Speculation
from decoding.speculation.controllers.chain import ChainController
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.draft import Draft, DraftSampling, TreeTemplate
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Controller, DraftPlan
from tests.support.draft_sources import DRAWS, PRUNABLE, FakeSource, OracleSource, RecordingDrafter, branch
from tests.support.engines import TOKENIZER, mixed_requests
from tests.support.enumeration import filtered_distribution
from tests.support.fakes import HashBackend


class TestCoupled:
    """With the target's distribution as q, coupled drafts contain the target's token: both use the same noise."""

    @pytest.mark.parametrize("controller", [ChainController(5), FixedController(7)], ids=["chain", "tree"])
    def test_the_first_child_is_the_targets_choice(self, controller: Controller) -> None:
        backend = HashBackend()
        drafter = RecordingDrafter(OracleSource(backend), width=1 if isinstance(controller, ChainController) else 3)
        speculation = Speculation(drafter, controller)
        engine = LocalEngine(backend, decode=TOKENIZER.decode, kv_bytes=4000, speculation=speculation)
        try:
            done = asyncio.run(engine.generate(mixed_requests(30)))
        finally:
            engine.close()
        judged = 0
        for outcome in drafter.received:
            for node in (-1, *outcome.accepted_nodes):
                if node in outcome.draft.parents:
                    assert outcome.draft.parents.index(node) in outcome.accepted_nodes
                    judged += 1
        assert judged > 100
        if isinstance(controller, ChainController):
            assert sum(g.usage.accepted for g in done) == sum(g.usage.drafted for g in done) > 100

    @pytest.mark.parametrize("draw", PRUNABLE)
    def test_at_temperature_zero_the_children_are_the_likeliest(self, draw: DraftSampling) -> None:
        """All of them, filters or not: the runner-up may be what the target thinks best."""
        source, shape = FakeSource(), DraftPlan((4,), 4, template=TreeTemplate((-1,) * 4, (0, 1, 2, 3)))
        for seed in range(10):
            one = branch((seed, 2, 3), seed, temperature=0.0, top_k=1, top_p=0.1)
            (draft,) = TreeDrafter(source, draw).propose([one], shape)
            assert draft.tokens == tuple(source.table((seed, 2, 3)))[:4]

    @pytest.mark.parametrize("temperature", [0.7, 1.0])
    def test_estimates_are_right_once_calibrated(self, temperature: float) -> None:
        """Nodes put at 10 % come true in 10 % of cases."""
        backend = HashBackend(scale=4.0)
        drafter = RecordingDrafter(OracleSource(backend), "likely", width=4)
        params = SamplingParams(max_tokens=20, temperature=temperature)
        requests = [replace(request, params=params) for request in mixed_requests(150, seed=3)]
        engine = LocalEngine(
            backend, decode=TOKENIZER.decode, kv_bytes=9000, speculation=Speculation(drafter, FixedController(6))
        )
        try:
            asyncio.run(engine.generate(requests))
        finally:
            engine.close()
        outcomes = drafter.received[len(drafter.received) // 3 :]
        reach = np.array([r for one in outcomes for r in one.draft.path_probabilities])
        came_true = np.array([i in one.accepted_nodes for one in outcomes for i in range(len(one.draft))])
        for low, high in ((0.02, 0.06), (0.06, 0.12), (0.12, 0.2), (0.2, 0.4)):
            band = (reach >= low) & (reach < high)
            assert band.sum() > 50
            assert came_true[band].mean() == pytest.approx(reach[band].mean(), abs=2 / np.sqrt(band.sum()))


def chi2(counts: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def dependence(one: Sequence[int], other: Sequence[int], kinds: int = 4) -> float:
    """Chi-squared of the independence of two columns, `(kinds - 1)^2` degrees of freedom."""
    counts = np.histogram2d(one, other, bins=np.arange(kinds + 1))[0]
    return chi2(counts, np.outer(counts.sum(1), counts.sum(0)) / len(one))


class TestRandomDraws:
    """Frequencies over seeds. Thresholds are at p = 0.001."""

    N = 4000
    SOURCE = FakeSource(vocabulary=4, known=4, reads=0)  # the same everywhere
    FAN = TreeTemplate((-1, -1, 0, 1), (0, 1, 0, 0))  # two children with one each

    def q(self) -> npt.NDArray[np.float64]:
        table = self.SOURCE.table(())
        p = np.array([table[t] for t in range(4)])
        return np.array(p / p.sum())

    def drawn(
        self, draw: DraftSampling, template: TreeTemplate, tokens: Tokens = (1, 2, 3), count: int = N
    ) -> list[Draft]:
        branches, nodes = [branch(tokens, seed) for seed in range(count)], len(template)
        plan = DraftPlan((nodes,) * count, nodes * count, template=template)
        return TreeDrafter(self.SOURCE, draw).propose(branches, plan)

    def target(self, position: int) -> list[int]:
        """What the target would say there, if the source's distribution were its own."""
        noise = gumbel_noise(torch.from_numpy(noise_keys(range(self.N), [position] * self.N)), torch.arange(4))
        chosen: list[int] = (torch.from_numpy(np.log(self.q())) + noise).argmax(1).tolist()
        return chosen

    def test_without_replacement_is_a_sample_of_distinct_tokens(self) -> None:
        q, drafts = self.q(), self.drawn("without_replacement", self.FAN)
        first, second = zip(*(draft.tokens[:2] for draft in drafts), strict=True)
        pairs = np.histogram2d(first, second, bins=np.arange(5))[0]
        expected = np.array([[0 if i == j else q[i] * q[j] / (1 - q[i]) for j in range(4)] for i in range(4)])
        some = expected > 0
        assert pairs[~some].sum() == 0
        assert chi2(pairs[some], expected[some] * self.N) < 31.3  # 11 degrees of freedom

    def test_the_order_drawn_is_on_record(self) -> None:
        for draft in self.drawn("without_replacement", self.FAN, count=50):
            assert draft.sampling_record is not None
            assert draft.sampling_record.sampling == "without_replacement"
            assert draft.sampling_record.children == {-1: (0, 1), 0: (2,), 1: (3,)}
            for ids, q in draft.sampling_record.draft_probs.values():
                assert (ids.dtype.name, q.dtype.name) == ("int64", "float64")
                assert q.sum() == pytest.approx(1)
                np.testing.assert_allclose(q, self.q()[ids], rtol=1e-5)

    @pytest.mark.parametrize("draw", ["without_replacement", "iid"])
    def test_draws_know_nothing_of_the_target_of_other_rounds_or_of_each_other(self, draw: DraftSampling) -> None:
        """The target's choice at the same position, the round after, and the nodes of one draft."""
        fan = self.FAN if draw == "without_replacement" else TreeTemplate.make_chain(3)
        drafts, later = self.drawn(draw, fan), self.drawn(draw, fan, tokens=(1, 2, 3, 0))
        first = [draft.tokens[0] for draft in drafts]
        target, next_target = self.target(3), self.target(4)
        below = [draft.tokens[draft.parents.index(0)] for draft in drafts]
        for other in (target, next_target, [draft.tokens[0] for draft in later], below, first[1:] + first[:1]):
            assert dependence(first, other) < 27.9
        for other in (next_target, [draft.tokens[0] for draft in later]):
            assert dependence(below, other) < 27.9
        if draw == "without_replacement":
            assert dependence(below, [draft.tokens[draft.parents.index(1)] for draft in drafts]) < 27.9

    def test_independent_draws_repeat_and_become_one_node(self) -> None:
        q, drafts = self.q(), self.drawn("iid", TreeTemplate((-1, -1, -1), (0, 1, 2)))
        triples = []
        for draft in drafts:
            assert draft.sampling_record is not None
            draws = draft.sampling_record.children[-1]
            assert len(draws) == 3
            assert len(draft) == len(set(draws))
            triples.append([draft.tokens[node] for node in draws])
        assert min(map(len, drafts)) == 1
        for column in zip(*triples, strict=True):
            assert chi2(np.bincount(column, minlength=4), q * self.N) < 16.3  # 3 degrees of freedom
        one, two, three = zip(*triples, strict=True)
        assert max(dependence(one, two), dependence(two, three), dependence(one, three)) < 27.9

    def test_a_node_drawn_twice_has_the_children_of_both(self) -> None:
        twice = 0
        for draft in self.drawn("iid", self.FAN, count=500):
            assert draft.sampling_record is not None
            draft.assert_invariants()
            if draft.sampling_record.children[-1] == (0, 0):
                assert len(draft.sampling_record.children[0]) == 2
                twice += 1
        assert twice > 50

    @pytest.mark.parametrize("draw", DRAWS)
    def test_a_draft_is_a_function_of_seed_and_text(self, draw: DraftSampling) -> None:
        first, again = (self.drawn(draw, TreeTemplate.make_chain(3), count=200) for _ in range(2))
        assert [draft.tokens for draft in first] == [draft.tokens for draft in again]


FILTERS: list[dict[str, Any]] = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in product((0.4, 1.0, 1.7), (0, 1, 3), (1.0, 0.6), (0.0, 0.3))
]


@pytest.mark.parametrize("draw", DRAWS)
def test_children_survive_the_targets_filters(draw: DraftSampling) -> None:
    source, shape = FakeSource(reads=2), TreeTemplate((-1, -1, -1, -1, 0, 0), (0, 1, 2, 3, 0, 1))
    for seed, params in enumerate(FILTERS):
        one = branch((seed % 8, 5), seed, **params)
        (draft,) = TreeDrafter(source, draw).propose([one], DraftPlan((6,), 6, template=shape))
        assert len(draft)
        for node in {*draft.parents}:
            text = one.tokens[:] + tuple(draft.tokens[i] for i in draft.path_to(node))
            table = source.table(text)
            survive = filtered_distribution(np.log(list(table.values())), one.params)
            left = {t: float(p) for t, p in zip(table, survive, strict=True) if p > 0}
            children = {t for t, parent in zip(draft.tokens, draft.parents, strict=True) if parent == node}
            assert children <= left.keys()
            if draft.sampling_record is not None:
                ids, q = draft.sampling_record.draft_probs[node]
                assert dict(zip(ids.tolist(), q.tolist(), strict=True)) == pytest.approx(left, abs=1e-5)


def test_the_compiled_noise_is_the_targets() -> None:
    rng = np.random.default_rng(0)
    keys = noise_keys(rng.integers(1 << 62, size=200).tolist(), rng.integers(1 << 40, size=200))
    ids = np.concatenate([np.arange(20), rng.integers(1 << 20, size=80)])
    expected = gumbel_noise(torch.from_numpy(keys), torch.from_numpy(ids)).numpy()
    got = [[gumbel_of_token(key, other, token) for token in ids] for key, other in keys]
    np.testing.assert_allclose(got, expected, atol=1e-4)
