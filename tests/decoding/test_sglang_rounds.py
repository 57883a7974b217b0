"""How a server chooses the draft nodes of its rounds, without a server."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import SamplingParams
from decoding.sglang_plugin.adaptive_nodes import AdaptiveNodes, SizeCosts, list_sizes
from decoding.sglang_plugin.parts import RuleName, make_parts
from decoding.sglang_plugin.request_padding import RequestPadding
from decoding.sglang_plugin.requests import RequestReader
from decoding.sglang_plugin.rounds import RoundTimer, ServerRounds
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, Feedback
from reason.bench.plugin_round import ServedSampling
from tests.support.simulated_machine import branches

SIZES = (2, 5, 11)


class Server:
    """Rounds of one batch size: any draft costs `base` and a node per branch `node`, as shares of a plain round.

    A node is accepted with the probability `share`. The time of a round varies by a tenth.
    """

    def __init__(self, count: int, node: float, share: float = 0.5, base: float = 0.0) -> None:
        self.adaptive, self.count, self.node, self.share, self.base = AdaptiveNodes(SIZES), count, node, share, base
        self.rng, self.seconds, self.tokens, self.rounds = random.Random(0), 0.0, 0, Counter[int]()

    def expected(self, nodes: int) -> float:
        """Accepted nodes of a branch: each level is accepted with the same probability."""
        return sum(self.share**level for level in range(1, 1 + nodes))

    def run_round(self) -> None:
        kind = self.adaptive.plan_round(self.count, 100)
        nodes = 0
        if kind == "drafted":
            nodes = self.adaptive.choose_nodes(self.count, [self.count * self.expected(size) for size in SIZES])
        accepted = sum(
            next((level for level in range(nodes) if self.rng.random() > self.share), nodes) for _ in range(self.count)
        )
        seconds = self.cost(nodes) * self.rng.lognormvariate(0, 0.1) * 0.01
        tokens = self.count + accepted
        self.adaptive.observe(
            kind, branches=self.count, nodes=nodes, context_tokens=100, tokens=tokens, seconds=seconds
        )
        self.seconds, self.tokens = self.seconds + seconds, self.tokens + tokens
        self.rounds[nodes] += 1

    def run(self, rounds: int = 3000) -> float:
        """Returns tokens per second over those of plain rounds."""
        for _ in range(rounds):
            self.run_round()
        return self.tokens / self.seconds * 0.01 / self.count

    def rate(self, nodes: int) -> float:
        """Tokens per second of a fixed number of nodes over those of plain rounds."""
        return (1 + self.expected(nodes)) / self.cost(nodes)

    def cost(self, nodes: int) -> float:
        """Seconds of a round over those of a plain one."""
        return 1 + (self.base + self.node * nodes if nodes else 0)


@pytest.mark.parametrize("count", [1, 16, 64])
@pytest.mark.parametrize("node", [0.005, 0.03, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("base", [0.0, 0.6])
def test_a_server_is_nearly_as_fast_as_with_the_best_number_and_never_slower_than_without(
    count: int, node: float, share: float, base: float
) -> None:
    server = Server(count, node, share, base)
    rate = server.run()
    best = max(server.rate(nodes) for nodes in (0, *SIZES))
    assert rate > 0.97
    assert rate > 0.9 * best


def test_a_server_that_becomes_idle_enough_drafts_again() -> None:
    """Rounds are dear while others use the machine; half of the later ones have drafts."""
    server = Server(4, 2.0)
    server.run(500)
    assert server.rounds[0] > 450
    server.node, server.rounds = 0.005, Counter()
    server.run(2500)
    assert server.rounds[0] < 1250


def test_slow_rounds_keep_drafts_away_for_a_while_only() -> None:
    """Whatever was measured of a size while something else used the machine, it is measured again."""
    server = Server(1, 0.01)
    for _ in range(50):
        server.adaptive.observe(
            "drafted", branches=1, nodes=server.rng.choice(SIZES), context_tokens=100, tokens=1, seconds=1.0
        )
    server.run(4000)
    assert server.rounds[0] < 400


@given(st.integers(1, 500))
def test_sizes_ascend_to_the_most(most: int) -> None:
    sizes = list_sizes(most)
    assert sizes[-1] == most
    assert 0 < len(sizes) <= 3
    assert list(sizes) == sorted(set(sizes))


def test_sizes_that_were_not_measured_are_estimated_rather_too_cheap_than_too_dear() -> None:
    costs = SizeCosts()
    for _ in range(100):
        costs.observe_drafted(5, 2.0)
    assert [costs.ratio(nodes) for nodes in (0, 2, 5, 10)] == pytest.approx([1.0, 1.4, 2.0, 2.25])
    costs.observe_drafted(2, 1.7)
    assert [costs.ratio(nodes) for nodes in (1, 3, 10)] == pytest.approx([1.35, 1.8, 2.5])
    for _ in range(100):  # whatever the clock says, a larger size is not cheaper
        costs.observe_drafted(2, 9.9)
    assert costs.ratio(10) == pytest.approx(2.0)


def test_after_a_rest_nothing_is_certain() -> None:
    costs = SizeCosts({2: 1.5, 5: 3.0})
    costs.observe_drafted(5, 3.0)
    costs.observe_plain()
    assert set(costs.ratios) == {5}
    costs.observe_plain()
    assert not costs.ratios


def feed(rounds: ServerRounds, texts: list[Branch]) -> None:
    """Teaches the drafter that 1, 2, 3, 4 repeat."""
    ids = np.array([[token % 4 + 1] for token in (4, 1)])
    for text in texts:
        rounds.parts.drafter.observe([Feedback(text, Draft((1,), (-1,)), (), ids, np.zeros((2, 1), np.float32))])


def text(number: int, remaining: int = 50) -> Branch:
    return Branch(number, "p", (1, 2, 3, 4) * 8, number, SamplingParams(max_tokens=60), remaining)


@pytest.mark.parametrize("rule", ["coupled", "recursive_rejection"])
def test_rounds_are_padded_to_few_sizes_and_their_drafts_fit(rule: RuleName) -> None:
    parts = make_parts(11, rule)
    rounds = ServerRounds(parts, AdaptiveNodes(list_sizes(11) if parts.may_cut else (11,)))
    texts = [text(0), text(1), text(2, remaining=1)]
    feed(rounds, texts)
    kinds = Counter[str]()
    for _ in range(300):
        planned = rounds.plan_round(texts, 0.01)
        kinds[planned.kind] += 1
        assert planned.nodes - 1 in (0, 2, 5, 11) if parts.may_cut else (0, 11)
        assert planned.nodes == 1 or planned.kind == "drafted"
        assert all(len(draft) < planned.nodes for draft in planned.drafts)
        assert not len(planned.drafts[2])
        verified = rounds.verify_round(planned, torch.zeros(len(planned.trees.tokens), 10))
        rounds.end_round(planned, verified)
    assert kinds["drafted"] > 100
    assert kinds["plain"] > 1
    assert rounds.counts.total() == 300


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2), st.floats(0, 0.2)), min_size=40, max_size=80))
def test_no_request_has_padding_for_long_and_no_round_has_padding_alone(expected: list[tuple[float, ...]]) -> None:
    padding, in_a_row = RequestPadding(), [0, 0, 0]
    for tokens in expected:
        drafts = padding.choose_drafts((7, 8, 9), tokens)
        assert any(drafts)
        assert all(has_draft for one, has_draft in zip(tokens, drafts, strict=True) if one >= 0.05)
        in_a_row = [0 if has_draft else before + 1 for before, has_draft in zip(in_a_row, drafts, strict=True)]
        assert max(in_a_row) <= 16


def test_a_draft_that_is_worth_nothing_beside_others_has_padding_but_for_trials() -> None:
    padding = RequestPadding()
    drafts = [padding.choose_drafts((7, 8), (1.0, 0.01))[1] for _ in range(170)]
    assert drafts.count(True) == 10
    assert padding.choose_drafts((8,), (0.01,)) == [True]


class TwoRequests:
    """Greedy requests. The first goes on with 1, 2, 3, 4; the second with random tokens until it `is_good`, too."""

    def __init__(self) -> None:
        self.rounds, self.rng = ServerRounds(make_parts(5, "coupled"), AdaptiveNodes((5,))), np.random.default_rng(0)
        self.texts, self.is_good = [(1, 2, 3, 4), tuple(self.rng.integers(200, size=500).tolist())], False
        self.params = SamplingParams(max_tokens=100_000, temperature=0.0)

    def run_round(self) -> tuple[str, list[int]]:
        """Returns the kind of the round, and the size of both drafts."""
        branches = [
            Branch(i, f"problem {i}", text, i, self.params, self.params.max_tokens - len(text))
            for i, text in enumerate(self.texts)
        ]
        planned = self.rounds.plan_round(branches, 0.01)
        after = planned.trees.tokens % 4 + 1
        if not self.is_good:
            after[planned.nodes :] = self.rng.integers(200, size=planned.nodes)
        logits = torch.zeros(len(after), 200)
        logits[range(len(after)), after] = 20.0
        verified = self.rounds.verify_round(planned, logits)
        self.rounds.end_round(planned, verified)
        self.texts = [text + outcome.tokens for text, outcome in zip(self.texts, verified.outcomes, strict=True)]
        return planned.kind, [len(draft) for draft in planned.drafts]

    def run(self, rounds: int) -> list[list[int]]:
        """Returns the sizes of the drafts of the rounds that had any."""
        return [sizes for kind, sizes in (self.run_round() for _ in range(rounds)) if kind == "drafted"]


def test_a_refused_request_has_padding_until_its_drafts_are_good_again() -> None:
    server = TwoRequests()
    server.run(300)
    first, second = zip(*server.run(300), strict=True)
    assert len(first) > 250
    assert all(first)
    assert second.count(0) > 0.8 * len(second)
    assert all(any(second[begin : begin + 17]) for begin in range(len(second) - 16))
    assert any(server.rounds.parts.draft_trees([request_of(server, 1)])), "there are drafts: padding is a choice"
    server.is_good = True
    server.run(100)
    first, second = zip(*server.run(100), strict=True)
    assert all(first)
    assert all(second)


def request_of(server: TwoRequests, number: int) -> Branch:
    return Branch(number, f"problem {number}", server.texts[number], number, server.params, 100)


def test_drafts_whose_tokens_were_drawn_are_not_cut_by_their_probability() -> None:
    """Cutting them by what was drawn would change the distribution of the output."""
    assert make_parts(11, "coupled").may_cut
    assert not make_parts(11, "recursive_rejection").may_cut


def test_fixed_rounds_all_have_the_most_nodes() -> None:
    rounds = ServerRounds(make_parts(6, "coupled"), None)
    for seconds in (None, 0.1, 5.0):
        planned = rounds.plan_round(branches(2), seconds)
        assert (planned.nodes, planned.learns) == (7, True)


def test_timer_measures_rounds_that_follow_each_other_only() -> None:
    timer = RoundTimer()
    assert timer.begin_round(frozenset("ab"), 1.0) is None
    assert timer.begin_round(frozenset("bc"), 1.5) == 0.5
    assert timer.begin_round(frozenset("d"), 9.0) is None  # nothing ran on: the server may have had a pause
    timer.interrupt()
    assert timer.begin_round(frozenset("d"), 9.5) is None
    assert timer.begin_round(frozenset("d"), 9.75) == 0.25


class CountedIds(list[int]):
    """Ids that count how many of them are read."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        self.num_read += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        self.num_read += len(self)
        return super().__iter__()


@pytest.mark.parametrize("context", [500, 16_000])
def test_a_round_reads_the_last_ids_of_a_request_however_many_it_has(context: int) -> None:
    ids, reader, rounds = (
        CountedIds([1, 2, 3, 4] * (context // 4)),
        RequestReader(),
        ServerRounds(make_parts(11, "coupled"), None),
    )
    served = SimpleNamespace(
        rid="r", origin_input_ids=ids, output_ids=[], sampling_params=ServedSampling(1 << 19, 7, None)
    )
    for _ in range(20):
        ids.num_read = 0
        planned = rounds.plan_round(reader.to_branches([served]), 0.01)
        verified = rounds.verify_round(planned, torch.zeros(len(planned.trees.tokens), 10))
        rounds.end_round(planned, verified)
        ids += verified.outcomes[0].tokens
    assert 0 < ids.num_read < 100
