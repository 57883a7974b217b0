"""Acceptance rules with real target logits and uniform streams, and which drafts they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from decoding.core import SamplingParams
from decoding.noise import gumbel_noise, noise_keys
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.greedy_match import GreedyMatch
from decoding.speculation.acceptance.judge import Judge
from decoding.speculation.acceptance.k_sequential import KSequential
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_iid import RecursiveIid
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.acceptance.reflective import Reflective
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.typical import Typical
from decoding.speculation.acceptance.uniform_stream import SeededUniformStream, Vector
from decoding.speculation.acceptance.verify import TreeRule, check_sampling
from decoding.speculation.draft import Draft, DraftSampling, SamplingRecord
from decoding.speculation.interfaces import AcceptanceRule
from tests.support.acceptance_rules import (
    ALL,
    KINDS,
    NO,
    REJECTION,
    SAMPLING,
    change_record,
    id_of,
    sample_drafts,
    verify_with,
)
from tests.support.enumeration import (
    Instance,
    distance,
    draw_tree,
    tokens_after,
)
from tests.support.paths import CONF


class ConstantStream(SeededUniformStream):
    """Gives the same number on every draw."""

    def __init__(self, value: float) -> None:
        super().__init__(0, 0)
        self.value = value

    def next_uniform(self) -> float:
        return self.value


@pytest.mark.parametrize("value", [0.0, 0.5, 1 - 2.0**-53])
def test_the_impossible_does_not_happen_and_the_certain_does(value: float) -> None:
    """A uniform number of exactly 0 once accepted a token of probability 0 (SGLang #35771)."""
    stream = ConstantStream(value)
    assert not stream.accept_ratio(0.0)
    assert not stream.accept_ratio(0.0, 0.0)
    assert stream.accept_ratio(1.0)
    assert stream.accept_ratio(0.25, 0.25)
    assert stream.accept_ratio(0.25, 1e-320)
    for weights in ([0.0, 1.0, 0.0], [0.0, 1e-310, 0.0], [0.0, 0.1, 0.2, 0.0], [0.0, 3.0, 1e-30, 0.0, 0.7, 0.0]):
        assert weights[stream.sample_index(np.array(weights))] > 0


def test_seeded_stream_is_uniform_and_independent_of_the_noise_of_its_position() -> None:
    n = 10_000
    u = np.array([SeededUniformStream(5, position).next_uniform() for position in range(n)])
    noise = gumbel_noise(torch.from_numpy(noise_keys([5] * n, np.arange(n))), torch.arange(3)).double().numpy()
    counts = np.histogram(u, bins=50, range=(0, 1))[0]
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 85.4  # 49 degrees of freedom, p = 0.001
    for other in (u[1:], *np.exp(-np.exp(-noise.T))):
        assert abs(np.corrcoef(u[: len(other)], other)[0, 1]) < 4 / np.sqrt(n)


def test_seeded_stream_differs_between_rounds_and_seeds() -> None:
    def first(seed: int, committed: int) -> list[float]:
        stream = SeededUniformStream(seed, committed)
        return [stream.next_uniform() for _ in range(20)]

    numbers = [u for seed in (-1, 0, 1, 2**64 + 5) for committed in range(20) for u in first(seed, committed)]
    assert len(set(numbers)) == len(numbers)
    assert first(7, 3) == first(7, 3)


@pytest.mark.parametrize("rule", SAMPLING, ids=id_of)
def test_seeded_stream_and_model_logits_reproduce_p(rule: TreeRule) -> None:
    """A statistical smoke test of what the enumeration leaves out: stream, rows, float32 logits."""
    instance = Instance.random(11, number=float)
    count, rng = 1500, np.random.default_rng(0)
    path_counts = dict.fromkeys(instance.law, 0)
    for outcome in verify_with(rule, instance, sample_drafts(rule.supported_sampling[0], (2, 1), instance, count)):
        tokens = outcome.tokens
        while len(tokens) < instance.length:
            tokens = (*tokens, int(rng.choice(3, p=instance.p[tokens])))
        path_counts[tokens] += 1
    possible = {tokens: count * p for tokens, p in instance.law.items() if p > 0}
    assert sum(path_counts[tokens] for tokens in possible) == count
    chi2 = sum((path_counts[tokens] - expected) ** 2 / expected for tokens, expected in possible.items())
    assert chi2 < 54.1  # at most 26 degrees of freedom, p = 0.001
    assert distance({t: n / count for t, n in path_counts.items()}, instance.law) < 0.08


@pytest.mark.parametrize("rule", ALL, ids=id_of)
def test_at_temperature_zero_all_rules_are_greedy_matching(rule: AcceptanceRule) -> None:
    cold = SamplingParams(temperature=0.0)
    for seed in range(6):
        instance = Instance.random(seed, number=float)
        for kind in set(rule.supported_sampling) - {"coupled"}:
            drafts = [Draft(), *sample_drafts(kind, (2, 2), instance, 10)]
            results = verify_with(rule, instance, drafts, params=cold)
            greedy = verify_with(GreedyMatch(), instance, drafts, params=cold)
            assert [(o.accepted_nodes, o.tokens) for o in results] == [(o.accepted_nodes, o.tokens) for o in greedy]
            for draft, outcome in zip(drafts, results, strict=True):
                rows = [instance.p[tokens_after(draft, node)] for node in (-1, *outcome.accepted_nodes)]
                assert outcome.tokens == tuple(int(np.argmax(p)) for p in rows)


@pytest.mark.parametrize("rule", ALL, ids=id_of)
def test_outcomes_are_well_formed_and_report_raw_log_probabilities(rule: AcceptanceRule) -> None:
    params = SamplingParams(temperature=0.7, top_k=2)
    instance = Instance.random(4, number=float)
    kind = next(kind for kind in rule.supported_sampling if kind != "coupled")
    drafts = [Draft(), *sample_drafts(kind, (2, 2), instance, 50)]
    for draft, outcome in zip(drafts, verify_with(rule, instance, drafts, params=params), strict=True):
        assert outcome.accepted_nodes == draft.path_to(outcome.accepted_nodes[-1] if outcome.accepted_nodes else -1)
        assert outcome.tokens[:-1] == tuple(draft.tokens[node] for node in outcome.accepted_nodes)
        for node, token, logprob in zip((-1, *outcome.accepted_nodes), outcome.tokens, outcome.logprobs, strict=True):
            p = instance.p[tokens_after(draft, node)]
            assert logprob == pytest.approx(np.log(p[token]), abs=1e-5)
            assert token in np.argsort(-p)[:2]


@pytest.mark.parametrize("rule", SAMPLING, ids=id_of)
def test_an_outcome_depends_on_its_own_branch_only(rule: TreeRule) -> None:
    instance = Instance.random(2, number=float)
    drafts = sample_drafts(rule.supported_sampling[0], (2, 2), instance, 60)
    together = verify_with(rule, instance, drafts)
    assert together == verify_with(rule, instance, drafts)
    assert together != verify_with(rule, instance, drafts, prefix=5)  # another round of the same requests
    assert together != verify_with(rule, instance, drafts, seed=100)
    assert together[7:8] == verify_with(rule, instance, drafts[7:8], seed=7)


@pytest.mark.parametrize("rule", REJECTION, ids=id_of)
def test_extreme_numbers_never_commit_the_impossible(rule: TreeRule) -> None:
    """p and q that are equal, that barely overlap, or that underflow."""
    rng = np.random.default_rng(1)
    for trial in range(200):
        sharp, blunt = rng.choice([0.1, 30.0, 400.0], 2)
        instance = Instance.random(trial, number=float)

        def softmax(z: Vector) -> Vector:
            return np.asarray(np.exp(z - z.max()) / np.exp(z - z.max()).sum())

        q = {context: softmax(rng.normal(size=3) * sharp) for context in instance.q}
        p = {context: softmax(rng.normal(size=3) * blunt) for context in instance.p}
        if trial % 3 == 0:
            p |= q
        stream = SeededUniformStream(trial, 0)
        support = min(2, *((row > 0).sum() for row in q.values()))
        draft = draw_tree(rule.supported_sampling[0], (support, support), q, stream)
        path, token = rule.verify_tree(draft, lambda node, p=p, draft=draft: p[tokens_after(draft, node)], stream)  # type: ignore[misc]
        tokens = (*(draft.tokens[node] for node in path), token)
        assert all(p[tokens[:i]][token] > 0 for i, token in enumerate(tokens))


@pytest.mark.parametrize("rule", REJECTION, ids=id_of)
@pytest.mark.parametrize(
    ("p", "q"), [((0.0, 1.0, 0.0), (1e-17, 1.0, 0.0)), ((0.0, 0.5, 0.5), (1e-17, 0.5, 0.5))], ids=str
)
@pytest.mark.filterwarnings("error")
def test_p_is_what_is_left_where_rounding_left_nothing(rule: TreeRule, p: Sequence[float], q: Sequence[float]) -> None:
    """A drawn token that p excludes, from a q that rounds to p: nothing of p exceeds q, yet some token must come."""
    below = {-1: (np.arange(3), np.array(q)), 0: (np.arange(3), np.array(q))}
    draft = Draft(
        (0, 0), (-1, 0), sampling_record=SamplingRecord(rule.supported_sampling[0], {-1: (0,), 0: (1,)}, below)
    )
    for seed in range(20):
        path, token = rule.verify_tree(draft, lambda node: np.array(p), SeededUniformStream(seed, 0))
        assert not path
        assert p[token] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ALL, ids=id_of)
def test_a_wrong_pairing_is_refused_at_load_and_on_arrival(rule: AcceptanceRule, kind: DraftSampling) -> None:
    instance = Instance.random(0, number=float)
    draft = change_record(
        draw_tree("iid" if kind == "iid" else NO, (2, 1), instance.q, SeededUniformStream(1, 0)), sampling=kind
    )
    if kind in rule.supported_sampling:
        check_sampling(rule, kind)
        verify_with(rule, instance, [draft])
    else:
        with pytest.raises(
            ValueError,
            match=f"^acceptance={NAMES[type(rule)]} needs draw={rule.supported_sampling[0]}.*, got.*{kind}",
        ):
            check_sampling(rule, kind)
        with pytest.raises(ValueError, match=f"got draw={kind}"):
            verify_with(rule, instance, [Draft(), draft])


NAMES: dict[type[Any], str] = {
    Coupled: "coupled",
    GreedyMatch: "greedy_match",
    Judge: "judge",
    KSequential: "k_sequential",
    PointMass: "point_mass",
    RecursiveIid: "recursive_iid",
    RecursiveRejection: "recursive_rejection",
    Reflective: "reflective",
    Traversal: "traversal",
    Typical: "typical",
}


@pytest.mark.parametrize("rule", ALL, ids=id_of)
def test_a_draft_of_unknown_origin_suits_only_rules_that_need_no_q(rule: AcceptanceRule) -> None:
    instance, draft = Instance.random(0, number=float), Draft((0, 1), (-1, -1))
    if isinstance(rule, tuple(map(type, REJECTION))):
        with pytest.raises(ValueError, match="without a sampling record"):
            verify_with(rule, instance, [draft])
    else:
        verify_with(rule, instance, [draft])


def test_every_rule_has_a_yaml_of_its_name() -> None:
    made = {file.stem: type(instantiate(OmegaConf.load(file))) for file in (CONF / "acceptance").glob("*.yaml")}
    assert made == {name: rule for rule, name in NAMES.items()}


def test_every_lossless_rule_is_enumerated() -> None:
    """Those of `SAMPLING` in test_losslessness.py and test_known_bugs.py, coupled acceptance in test_coupled_law.py."""
    assert {rule for rule in NAMES if rule.lossless} == {*map(type, SAMPLING), Coupled}


def test_rules_say_whether_they_are_lossless_and_cannot_be_talked_out_of_it() -> None:
    assert [rule.lossless for rule in ALL] == [not isinstance(rule, GreedyMatch) for rule in ALL]
    with pytest.raises(TypeError):
        GreedyMatch(lossless=True)  # type: ignore[call-arg]


def test_traversal_accepts_a_draft_deeper_than_the_stack_of_python() -> None:
    depth, q = 3000, (np.array([1, 2]), np.array([0.5, 0.5]))
    nodes = range(-1, depth - 1)
    record = SamplingRecord("without_replacement", {node: (node + 1,) for node in nodes}, dict.fromkeys(nodes, q))
    draft = Draft((1,) * depth, tuple(nodes), sampling_record=record)
    target = np.array([0.0, 0.5, 0.5])
    path = Traversal().verify_tree(draft, lambda _: target, SeededUniformStream(1, depth))
    assert len(path.accepted_nodes) == depth
