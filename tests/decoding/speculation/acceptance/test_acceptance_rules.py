"""Every published rule reproduces the target exactly with the drawing it is for, and its known bugs do not.

A proof by enumeration (`tests.support.enumeration`), in fractions: the joint law of all tokens a round may commit. The
bugs are those found in the field; most of them keep or raise acceptance, so nothing else would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from decoding.core import SamplingParams
from decoding.noise import gumbel, row_keys
from decoding.sampler import SamplingRows
from decoding.speculation.acceptance.compatibility import check_pairing
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.greedy_match import GreedyMatch
from decoding.speculation.acceptance.k_sequential import KSequential
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_iid import RecursiveIid
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.acceptance.residual import excess, leftover, normalised, without
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.uniform_stream import Coins, KeyedCoins, Vector
from decoding.speculation.acceptance.verify import Children, P, Walked, children, walk_down
from decoding.speculation.interfaces import Branch, Draft, DrawKind, Drawn
from decoding.speculation.target_logits import Acceptance, Accepted, Target
from tests.support.enumeration import Instance, Report, Walk, after, distance, draw, enumerated, judged
from tests.support.paths import CONF

CONF = CONF / "acceptance"
KINDS: tuple[DrawKind, ...] = ("coupled", "likely", "without_replacement", "iid")
CAUGHT = 1e-3  # total variation on the worst instance


class Rule(Acceptance, Protocol):
    """A rule that can be enumerated."""

    def walk(self, draft: Draft, p: P, coins: Coins) -> Walked: ...


REJECTION: list[Rule] = [RecursiveRejection(), Traversal(), RecursiveIid(), KSequential()]
SAMPLING: list[Rule] = [*REJECTION, PointMass()]
ALL: list[Acceptance] = [*SAMPLING, GreedyMatch(), Coupled()]


def named(value: Any) -> str:
    return type(value).__name__ if hasattr(value, "draws") else str(value)


def enumerate_all(
    walk: Walk,
    kind: DrawKind,
    fans: Sequence[int],
    *,
    seeds: Iterable[int],
    vocabulary: int = 3,
    number: type = Fraction,
    tamper: Callable[[Draft], Draft] = lambda draft: draft,
) -> list[Report]:
    """One report for each instance, of drafts that something happened to between draw and verdict."""
    reports = []
    for seed in seeds:
        instance = Instance.random(seed, vocabulary=vocabulary, length=len(fans) + 1, number=number)

        def drawing(coins: Coins, instance: Instance = instance) -> Draft:
            return tamper(draw(kind, fans, instance.q, coins))

        reports.append(enumerated(instance, drawing, walk))
    return reports


def prove(rule: Rule, kind: DrawKind, fans: Sequence[int], *, seeds: Iterable[int], vocabulary: int = 3) -> None:
    """The law is the target's: to the last bit, or to 1e-12 for k_sequential with its irrational threshold."""
    exact = not isinstance(rule, KSequential)
    number = Fraction if exact else float
    reports = enumerate_all(rule.walk, kind, fans, seeds=seeds, vocabulary=vocabulary, number=number)
    assert worst(reports) <= (0 if exact else 1e-12)


def worst(reports: list[Report]) -> float:
    return max(report.distance for report in reports)


def kept(reports: list[Report]) -> float:
    return float(np.mean([report.kept for report in reports]))


# --- lossless with the drawing it is for ---------------------------------------------------------------------------

PAIRS = [(rule, kind) for rule in SAMPLING for kind in rule.draws if kind != "coupled"]


@pytest.mark.parametrize(
    ("rule", "kind", "fans"),
    [(*pair, fans) for pair in PAIRS for fans in [(1, 1), (2, 1), (1, 2)]]
    + [(r, r.draws[0], (2, 2)) for r in SAMPLING],
    ids=named,
)
def test_three_tokens_are_distributed_as_the_targets(rule: Rule, kind: DrawKind, fans: tuple[int, ...]) -> None:
    prove(rule, kind, fans, seeds=range(1) if fans == (2, 2) else range(3))


@pytest.mark.parametrize("fan", [1, 2, 3, 4])
@pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=named)
def test_two_tokens_are_too_with_four_to_choose_from(rule: Rule, kind: DrawKind, fan: int) -> None:
    """Four draws without replacement leave q empty after the last."""
    prove(rule, kind, [fan], seeds=range(1 if fan == 4 else 4), vocabulary=4)


@pytest.mark.parametrize("rule", SAMPLING, ids=named)
def test_rounding_does_not_add_up(rule: Rule) -> None:
    """In float64, as in decoding. The anchor's weight in `traversal` once came out below 1: z / (z + 1 - w)."""
    reports = enumerate_all(rule.walk, rule.draws[0], (2, 1), seeds=range(4), number=float)
    assert worst(reports) < 1e-12


@pytest.mark.parametrize("rule", SAMPLING, ids=named)
def test_the_empty_draft_is_plain_sampling(rule: Rule) -> None:
    instance = Instance.random(0, length=1)
    assert enumerated(instance, partial(given, Draft()), rule.walk) == Report(0.0, 0.0)


def given(draft: Draft, coins: Coins) -> Draft:
    """Nothing random about it."""
    return draft


def test_point_mass_is_lossless_given_the_draft() -> None:
    """Whatever was drawn, and how: so noise used before, or the target's own, does no harm."""
    instance = Instance.random(3)
    for draft in (Draft((0, 2, 1, 1), (-1, -1, 0, 1)), Draft((2, 1, 0), (-1, 0, 0)), Draft((1,), (-1,))):
        assert enumerated(instance, partial(given, draft), PointMass().walk).distance == 0


def test_point_mass_is_trying_the_children_one_by_one() -> None:
    def one_by_one(draft: Draft, p: P, coins: Coins) -> Walked:
        def decide(node: int) -> int:
            p_V = p(node).copy()
            for child in np.flatnonzero(np.array(draft.parents) == node):
                if coins.accept(p_V[draft.tokens[child]]):
                    return draft.tokens[child]
                p_V[draft.tokens[child]] = 0
                p_V = normalised(p_V, otherwise=p_V)
            return coins.choose(p_V)

        return walk_down(draft, decide)

    draft = Draft((0, 2, 1, 1), (-1, -1, 0, 1))
    for seed in range(5):
        instance = Instance.random(seed)
        assert judged(one_by_one, draft, instance) == judged(PointMass().walk, draft, instance)


def test_traversal_of_a_chain_is_block_verification() -> None:
    """Not only in law: each single draft has the same fate, with the same probabilities."""

    def block(draft: Draft, p: P, coins: Coins) -> Walked:
        w: list[Any] = [1]
        rest: list[Vector] = []
        for node, token in enumerate(draft.tokens):
            _, ids_K, q_K = children(draft, node - 1)
            rest.append(excess(w[-1] * p(node - 1), ids_K, q_K))
            w.append(min(1, w[-1] * p(node - 1)[token] / q_K[token]))
        end = len(draft)
        h = [z / (z + 1 - w[i]) if (z := rest[i].sum()) else 0 for i in range(1, end)]
        tau = max([0, *(i for i, chance in enumerate([*h, w[end]], start=1) if coins.accept(chance))])
        last = p(end - 1) if tau == end else normalised(rest[tau], otherwise=p(tau - 1))
        return Walked(tuple(range(tau)), coins.choose(last))

    for seed in range(8):
        instance = Instance.random(seed)
        for first, second in np.ndindex(3, 3):
            q = {node: (np.arange(3), instance.q[c]) for node, c in ((-1, ()), (0, (int(first),)))}
            draft = Draft((int(first), int(second)), (-1, 0), drawn=Drawn("iid", {-1: (0,), 0: (1,)}, q))
            assert judged(block, draft, instance) == judged(Traversal().walk, draft, instance)


# --- the bugs of the field, and the wrong pairings ------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A rule as somebody once had it: drafts drawn one way, changed by `tamper`, judged by `walk`."""

    name: str
    kind: DrawKind
    walk: Walk
    tamper: Callable[[Draft], Draft] = lambda draft: draft


def redrawn(draft: Draft, **changes: Any) -> Draft:
    assert draft.drawn is not None
    return replace(draft, drawn=replace(draft.drawn, **changes))


def q_of(draft: Draft, node: int) -> Any:
    assert draft.drawn is not None
    ids_K, q_K = draft.drawn.q[draft.parents[node]]
    return q_K[ids_K == draft.tokens[node]][0]


def resorted(draft: Draft) -> Draft:
    assert draft.drawn is not None
    draws = draft.drawn.draws.items()
    return redrawn(draft, draws={at: tuple(sorted(nodes, key=lambda i: -q_of(draft, i))) for at, nodes in draws})


def dropped(draft: Draft) -> Draft:
    unlikely = {node for node in range(len(draft)) if q_of(draft, node) < Fraction(1, 4)}
    return draft.keep(node for node in range(len(draft)) if not unlikely & set(draft.path_to(node)))


def learned(draft: Draft) -> Draft:
    """The table went on learning while the draft was on its way."""
    assert draft.drawn is not None
    return redrawn(draft, q={at: (ids, (q + q[::-1]) / 2) for at, (ids, q) in draft.drawn.q.items()})


def not_renormalised(draft: Draft) -> Draft:
    """q as the table has it, where the ids kept hold three quarters of the mass."""
    assert draft.drawn is not None
    return redrawn(draft, q={at: (ids, q * Fraction(3, 4)) for at, (ids, q) in draft.drawn.q.items()})


def deduplicated(draft: Draft) -> Draft:
    assert draft.drawn is not None
    return redrawn(draft, draws={at: tuple(dict.fromkeys(nodes)) for at, nodes in draft.drawn.draws.items()})


def cut(draft: Draft) -> Draft:
    """Room for two nodes: a third draw stays only if it repeats one of the others. A draft refuses that by itself."""
    return redrawn(redrawn(draft, kind=NO).within(nodes=2, depth=9), kind="iid")


def last_from_p(draft: Draft, p: P, coins: Coins) -> Walked:
    def decide(p_V: Vector, drawn: Children) -> int:
        whole_V, q_K = p_V, drawn.q_K
        for _, token, at in drawn.draws:
            if coins.accept(p_V[token], q_K[at]):
                return token
            p_V, q_K = leftover(p_V, drawn.ids_K, q_K), without(q_K, at)
        return coins.choose(whole_V)

    return walk_down(draft, lambda node: decide(p(node), children(draft, node)))


def last_from_first_q(draft: Draft, p: P, coins: Coins) -> Walked:
    """Residual from q as it was before any child was rejected."""

    def decide(p_V: Vector, drawn: Children) -> int:
        q_K = drawn.q_K
        for _, token, at in drawn.draws:
            if coins.accept(p_V[token], q_K[at]):
                return token
            p_V, q_K = leftover(p_V, drawn.ids_K, drawn.q_K), without(q_K, at)
        return coins.choose(p_V)

    return walk_down(draft, lambda node: decide(p(node), children(draft, node)))


NO: DrawKind = "without_replacement"
MUTANTS = [
    Mutant("children re-sorted", NO, RecursiveRejection().walk, resorted),
    Mutant("children re-sorted, traversal", NO, Traversal().walk, resorted),
    Mutant("children dropped by their own q", NO, RecursiveRejection().walk, dropped),
    Mutant("children dropped by their own q, traversal", NO, Traversal().walk, dropped),
    Mutant("q changed after the draw", NO, RecursiveRejection().walk, learned),
    Mutant("q changed after the draw, iid", "iid", RecursiveIid().walk, learned),
    Mutant("truncated q not renormalised", NO, RecursiveRejection().walk, not_renormalised),
    Mutant("truncated q not renormalised, iid", "iid", RecursiveIid().walk, not_renormalised),
    Mutant("top-k taken for a sample", "likely", RecursiveRejection().walk),
    Mutant("top-k taken for a sample, traversal", "likely", Traversal().walk),
    Mutant("q not masked after a rejection", NO, RecursiveIid().walk),
    Mutant("last token from p", NO, last_from_p),
    Mutant("last token from p and the first q", NO, last_from_first_q),
    Mutant("iid deduplicated, q unmasked", "iid", RecursiveIid().walk, deduplicated),
    Mutant("iid cut to two distinct tokens", "iid", RecursiveIid().walk, cut),
    Mutant("k_sequential without replacement", NO, KSequential().walk),
    Mutant("k_sequential of top-k", "likely", KSequential().walk),
    Mutant("recursive_rejection of iid", "iid", RecursiveRejection().walk),
    Mutant("traversal of iid", "iid", Traversal().walk),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_known_bug_is_caught(mutant: Mutant) -> None:
    """By the enumeration above, three children of four tokens; one instance of a few is enough."""

    def off(seed: int) -> float:
        return worst(enumerate_all(mutant.walk, mutant.kind, [3], seeds=[seed], vocabulary=4, tamper=mutant.tamper))

    assert any(off(seed) > CAUGHT for seed in range(8))


def test_what_looks_like_a_bug_and_is_none() -> None:
    """Dropping and reordering under point mass; independent draws without repeats under a masked q; a draft cut to
    size by how many nodes came before, never by which; identical draws below siblings, if seen from the top."""
    point, down, up = PointMass().walk, RecursiveRejection().walk, Traversal().walk
    for kind, walk, tamper in (
        (NO, point, dropped),
        (NO, point, resorted),
        ("iid", point, cut),
        ("iid", down, deduplicated),
        (NO, down, lambda draft: draft.within(nodes=3, depth=9)),
        (NO, up, lambda draft: draft.within(nodes=3, depth=9)),
        (NO, up, lambda draft: draft.within(nodes=9, depth=1)),
    ):
        assert worst(enumerate_all(walk, kind, (2, 1), seeds=range(3), tamper=tamper)) == 0


def test_traversal_needs_independent_draws_below_siblings() -> None:
    """One noise for all nodes of a depth, as noise keyed by position alone would be: seen from the top only one of them
    counts, but leaves first they are evidence about each other."""
    distances: dict[str, float] = {}
    for rule in REJECTION[:2]:
        distances[named(rule)] = 0
        for seed in range(4):
            instance = Instance.random(seed)
            same = {context: instance.q[(0,)[: len(context)]] for context in instance.q}

            def drawing(coins: Coins, same: dict[Any, Vector] = same) -> Draft:
                top = draw(NO, [2], same, coins)
                (below,) = draw(NO, [1], {(): same[0,]}, coins).tokens
                q = {node: (np.arange(3), same[(0,)[: 1 + node]]) for node in (-1, 0, 1)}
                drawn = Drawn(NO, {-1: (0, 1), 0: (2,), 1: (3,)}, q)
                return Draft((*top.tokens, below, below), (-1, -1, 0, 1), drawn=drawn)

            report = enumerated(replace(instance, q=same), drawing, rule.walk)
            distances[named(rule)] = max(distances[named(rule)], report.distance)
    assert distances["RecursiveRejection"] == 0
    assert distances["Traversal"] > CAUGHT


# --- how much is kept -----------------------------------------------------------------------------------------------


def test_rules_rank_as_published() -> None:
    """One node of four tokens (PAPERS 7.1): without replacement > k-sequential > recursive iid > point mass."""
    pairs: list[tuple[Rule, DrawKind]] = [
        (RecursiveRejection(), NO),
        (KSequential(), "iid"),
        (RecursiveIid(), "iid"),
        (PointMass(), NO),
    ]
    for fan, seeds in ((2, range(20)), (3, range(6))):
        ranked = [enumerate_all(r.walk, kind, [fan], seeds=seeds, vocabulary=4, number=float) for r, kind in pairs]
        means = [kept(reports) for reports in ranked]
        without_replacement, _, iid, _ = ranked
        assert means == sorted(means, reverse=True)
        assert all(a.kept >= b.kept - 1e-12 for a, b in zip(without_replacement, iid, strict=True))


@pytest.mark.parametrize("fans", [(1, 1), (2, 1)], ids=str)
def test_traversal_keeps_more_than_recursive_rejection(fans: tuple[int, ...]) -> None:
    up = enumerate_all(Traversal().walk, NO, fans, seeds=range(10), number=float)
    down = enumerate_all(RecursiveRejection().walk, NO, fans, seeds=range(10), number=float)
    assert all(a.kept >= b.kept - 1e-12 for a, b in zip(up, down, strict=True))
    assert kept(up) > kept(down) + 0.01


# --- coins ----------------------------------------------------------------------------------------------------------


class Stuck(KeyedCoins):
    """Every coin the same."""

    def __init__(self, value: float) -> None:
        super().__init__(0, 0)
        self.value = value

    def uniform(self) -> float:
        return self.value


@pytest.mark.parametrize("value", [0.0, 0.5, 1 - 2.0**-53])
def test_the_impossible_does_not_happen_and_the_certain_does(value: float) -> None:
    """A coin of exactly 0 once accepted a token of probability 0 (SGLang #35771)."""
    coins = Stuck(value)
    assert not coins.accept(0.0)
    assert not coins.accept(0.0, 0.0)
    assert coins.accept(1.0)
    assert coins.accept(0.25, 0.25)
    assert coins.accept(0.25, 1e-320)
    for weights in ([0.0, 1.0, 0.0], [0.0, 1e-310, 0.0], [0.0, 0.1, 0.2, 0.0], [0.0, 3.0, 1e-30, 0.0, 0.7, 0.0]):
        assert weights[coins.choose(np.array(weights))] > 0


def test_coins_are_uniform_and_unlike_the_noise_of_their_position() -> None:
    n = 10_000
    u = np.array([KeyedCoins(5, position).uniform() for position in range(n)])
    noise = gumbel(torch.from_numpy(row_keys([5] * n, np.arange(n))), torch.arange(3)).double().numpy()
    counts = np.histogram(u, bins=50, range=(0, 1))[0]
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 85.4  # 49 degrees of freedom, p = 0.001
    for other in (u[1:], *np.exp(-np.exp(-noise.T))):
        assert abs(np.corrcoef(u[: len(other)], other)[0, 1]) < 4 / np.sqrt(n)


def test_every_round_and_seed_has_coins_of_its_own() -> None:
    def first(seed: int, committed: int) -> list[float]:
        coins = KeyedCoins(seed, committed)
        return [coins.uniform() for _ in range(20)]

    tossed = [u for seed in (-1, 0, 1, 2**64 + 5) for committed in range(20) for u in first(seed, committed)]
    assert len(set(tossed)) == len(tossed)
    assert first(7, 3) == first(7, 3)


# --- through a real target ------------------------------------------------------------------------------------------


def said(
    instance: Instance, drafts: Sequence[Draft], params: SamplingParams, *, seed: int = 0, prefix: int = 4
) -> tuple[list[Branch], Target]:
    """A branch for every draft, and the target's rows for all of them."""
    rows: list[Vector] = []
    branches, first, positions = [], [], []
    for i, draft in enumerate(drafts):
        branches.append(Branch(i, "", (0,) * prefix, seed + i, params, 99))
        first.append(len(rows))
        rows += [instance.p[after(draft, node)] for node in range(-1, len(draft))]
        positions += [prefix + depth for depth in (0, *draft.depths)]
    logits = torch.tensor(np.log(np.maximum(np.array(rows, dtype=np.float64), 1e-30)), dtype=torch.float32)
    seeds = [branch.seed for branch, draft in zip(branches, drafts, strict=True) for _ in range(1 + len(draft))]
    return branches, Target(logits, SamplingRows.of([params] * len(rows), seeds, positions), tuple(first))


def drawn_drafts(kind: DrawKind, fans: Sequence[int], instance: Instance, count: int) -> list[Draft]:
    return [draw(kind, fans, instance.q, KeyedCoins(10**9 + i, 0)) for i in range(count)]


def judge(rule: Acceptance, instance: Instance, drafts: Sequence[Draft], **knobs: Any) -> list[Accepted]:
    branches, target = said(instance, drafts, knobs.pop("params", SamplingParams()), **knobs)
    return rule.accept(branches, drafts, target)


@pytest.mark.parametrize("rule", SAMPLING, ids=named)
def test_real_coins_and_a_real_target_reproduce_p(rule: Rule) -> None:
    """A statistical smoke test of what the enumeration leaves out: coins, rows, float32 logits."""
    instance = Instance.random(11, number=float)
    count, rng = 1500, np.random.default_rng(0)
    seen = dict.fromkeys(instance.law, 0)
    for outcome in judge(rule, instance, drawn_drafts(rule.draws[0], (2, 1), instance, count)):
        tokens = outcome.tokens
        while len(tokens) < instance.length:
            tokens = (*tokens, int(rng.choice(3, p=instance.p[tokens])))
        seen[tokens] += 1
    possible = {tokens: count * p for tokens, p in instance.law.items() if p > 0}
    assert sum(seen[tokens] for tokens in possible) == count
    chi2 = sum((seen[tokens] - expected) ** 2 / expected for tokens, expected in possible.items())
    assert chi2 < 54.1  # at most 26 degrees of freedom, p = 0.001
    assert distance({t: n / count for t, n in seen.items()}, instance.law) < 0.08


@pytest.mark.parametrize("rule", ALL, ids=named)
def test_at_temperature_zero_all_rules_are_greedy_matching(rule: Acceptance) -> None:
    cold = SamplingParams(temperature=0.0)
    for seed in range(6):
        instance = Instance.random(seed, number=float)
        for kind in set(rule.draws) - {"coupled"}:
            drafts = [Draft(), *drawn_drafts(kind, (2, 2), instance, 10)]
            outcomes = judge(rule, instance, drafts, params=cold)
            greedy = judge(GreedyMatch(), instance, drafts, params=cold)
            assert [(o.path, o.tokens) for o in outcomes] == [(o.path, o.tokens) for o in greedy]
            for draft, outcome in zip(drafts, outcomes, strict=True):
                rows = [instance.p[after(draft, node)] for node in (-1, *outcome.path)]
                assert outcome.tokens == tuple(int(np.argmax(p)) for p in rows)


@pytest.mark.parametrize("rule", ALL, ids=named)
def test_outcomes_are_well_formed_and_report_raw_log_probabilities(rule: Acceptance) -> None:
    params = SamplingParams(temperature=0.7, top_k=2)
    instance = Instance.random(4, number=float)
    kind = next(kind for kind in rule.draws if kind != "coupled")
    drafts = [Draft(), *drawn_drafts(kind, (2, 2), instance, 50)]
    for draft, outcome in zip(drafts, judge(rule, instance, drafts, params=params), strict=True):
        assert outcome.path == draft.path_to(outcome.path[-1] if outcome.path else -1)
        assert outcome.tokens[:-1] == tuple(draft.tokens[node] for node in outcome.path)
        for node, token, logprob in zip((-1, *outcome.path), outcome.tokens, outcome.logprobs, strict=True):
            p = instance.p[after(draft, node)]
            assert logprob == pytest.approx(np.log(p[token]), abs=1e-5)
            assert token in np.argsort(-p)[:2]


@pytest.mark.parametrize("rule", SAMPLING, ids=named)
def test_an_outcome_depends_on_its_own_branch_only(rule: Rule) -> None:
    instance = Instance.random(2, number=float)
    drafts = drawn_drafts(rule.draws[0], (2, 2), instance, 60)
    together = judge(rule, instance, drafts)
    assert together == judge(rule, instance, drafts)
    assert together != judge(rule, instance, drafts, prefix=5)  # another round of the same requests
    assert together != judge(rule, instance, drafts, seed=100)
    assert together[7:8] == judge(rule, instance, drafts[7:8], seed=7)


@pytest.mark.parametrize("rule", REJECTION, ids=named)
def test_extreme_numbers_never_commit_the_impossible(rule: Rule) -> None:
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
        coins = KeyedCoins(trial, 0)
        support = min(2, *((row > 0).sum() for row in q.values()))
        draft = draw(rule.draws[0], (support, support), q, coins)
        path, token = rule.walk(draft, lambda node, p=p, draft=draft: p[after(draft, node)], coins)  # type: ignore[misc]
        tokens = (*(draft.tokens[node] for node in path), token)
        assert all(p[tokens[:i]][token] > 0 for i, token in enumerate(tokens))


@pytest.mark.parametrize("rule", REJECTION, ids=named)
@pytest.mark.parametrize(
    ("p", "q"), [((0.0, 1.0, 0.0), (1e-17, 1.0, 0.0)), ((0.0, 0.5, 0.5), (1e-17, 0.5, 0.5))], ids=str
)
@pytest.mark.filterwarnings("error")
def test_p_is_what_is_left_where_rounding_left_nothing(rule: Rule, p: Sequence[float], q: Sequence[float]) -> None:
    """A drawn token that p excludes, from a q that rounds to p: nothing of p exceeds q, yet some token must come."""
    below = {-1: (np.arange(3), np.array(q)), 0: (np.arange(3), np.array(q))}
    draft = Draft((0, 0), (-1, 0), drawn=Drawn(rule.draws[0], {-1: (0,), 0: (1,)}, below))
    for seed in range(20):
        path, token = rule.walk(draft, lambda node: np.array(p), KeyedCoins(seed, 0))
        assert not path
        assert p[token] > 0


# --- pairing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ALL, ids=named)
def test_a_wrong_pairing_is_refused_at_load_and_on_arrival(rule: Acceptance, kind: DrawKind) -> None:
    instance = Instance.random(0, number=float)
    draft = redrawn(draw("iid" if kind == "iid" else NO, (2, 1), instance.q, KeyedCoins(1, 0)), kind=kind)
    if kind in rule.draws:
        check_pairing(rule, kind)
        judge(rule, instance, [draft])
    else:
        with pytest.raises(
            ValueError, match=f"^acceptance={NAMES[type(rule)]} needs draw={rule.draws[0]}.*, got.*{kind}"
        ):
            check_pairing(rule, kind)
        with pytest.raises(ValueError, match=f"got draw={kind}"):
            judge(rule, instance, [Draft(), draft])


NAMES = {
    Coupled: "coupled",
    GreedyMatch: "greedy_match",
    KSequential: "k_sequential",
    PointMass: "point_mass",
    RecursiveIid: "recursive_iid",
    RecursiveRejection: "recursive_rejection",
    Traversal: "traversal",
}


@pytest.mark.parametrize("rule", ALL, ids=named)
def test_a_draft_of_unknown_origin_suits_only_rules_that_need_no_q(rule: Acceptance) -> None:
    instance, draft = Instance.random(0, number=float), Draft((0, 1), (-1, -1))
    if isinstance(rule, tuple(map(type, REJECTION))):
        with pytest.raises(ValueError, match="does not say how it was drawn"):
            judge(rule, instance, [draft])
    else:
        judge(rule, instance, [draft])


def test_every_rule_has_a_yaml_of_its_name() -> None:
    made = {file.stem: type(instantiate(OmegaConf.load(file))) for file in CONF.glob("*.yaml")}
    assert made == {name: rule for rule, name in NAMES.items()}


def test_rules_say_whether_they_are_lossless_and_cannot_be_talked_out_of_it() -> None:
    assert [rule.lossless for rule in ALL] == [not isinstance(rule, GreedyMatch) for rule in ALL]
    with pytest.raises(TypeError):
        GreedyMatch(lossless=True)  # type: ignore[call-arg]
