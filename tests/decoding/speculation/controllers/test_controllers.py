"""How much is guessed: shapes, costs, and what pays on a machine that is simulated."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding.core import SamplingParams, Tokens
from decoding.speculation.controllers.chain import Chain
from decoding.speculation.controllers.cost_curve import CostCurve, Paced
from decoding.speculation.controllers.fixed import Fixed
from decoding.speculation.controllers.goodput import Goodput
from decoding.speculation.controllers.speculation_probe import Trials
from decoding.speculation.controllers.template import BUNDLED, FromTemplate
from decoding.speculation.controllers.throughput import Throughput
from decoding.speculation.controllers.warmup_profile import rehearse
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import (
    Branch,
    Controller,
    Draft,
    Feedback,
    Load,
    Price,
    RoundCost,
    Template,
)
from tests.decoding.speculation.drafters.test_tree_builder import Fake
from tests.decoding.test_engine import engine_of, mixed_requests
from tests.support.fakes import HashBackend

AMPLE = Load(running=3, waiting=0, context_tokens=100, spare_rows=1000)


def branches(count: int) -> list[Branch]:
    return [Branch(i, "a problem", (1, 2, 3), i, SamplingParams(), 100) for i in range(count)]


def spare(rows: int) -> Load:
    return Load(running=3, waiting=0, context_tokens=100, spare_rows=rows)


def name_of(controller: Controller) -> str:
    return type(controller).__name__


class TestTemplate:
    @pytest.mark.parametrize(
        ("parents", "ranks", "message"),
        [
            ((0,), (0,), "node 0 of a template comes before its parent or its elder sibling"),
            ((-1, 2, 1), (0, 0, 0), "node 1 of a template comes before its parent"),
            ((-1, -2), (0, 0), "node 1 of a template comes before its parent"),
            ((-1, -1), (0, 2), "node 1 of a template comes before its parent or its elder sibling"),
            ((-1, 0), (0, 1), "node 1 of a template comes before its parent or its elder sibling"),
            ((-1, -1), (0, -1), "node 1 of a template comes before its parent or its elder sibling"),
            ((-1, 0, 0), (0, 0, 0), "node 2 of a template repeats child 0 of node 0"),
            ((-1, 0), (0,), "shorter"),
        ],
        ids=str,
    )
    def test_a_tree_that_is_none_is_refused(self, parents: Tokens, ranks: Tokens, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Template(parents, ranks)

    def test_every_beginning_is_a_template(self) -> None:
        whole = Template((-1, -1, 0, 0, 1, 2, -1), (0, 1, 0, 1, 0, 0, 2))
        for n in range(len(whole) + 1):
            assert len(Template(whole.parents[:n], whole.ranks[:n])) == n

    def test_a_chain(self) -> None:
        assert Template.chain(0) == Template((), ())
        assert Template.chain(2) == Template((-1, 0), (0, 0))


def written(folder: Path, text: str) -> str:
    file = folder / "tree.json"
    file.write_text(text, encoding="utf-8")
    return str(file)


class TestFromTemplate:
    def test_it_reads_a_file(self, tmp_path: Path) -> None:
        file = written(tmp_path, json.dumps({"parents": [-1, -1, 0], "ranks": [0, 1, 0], "accepted": 2.5}))
        controller = FromTemplate(file)
        assert controller.template == Template((-1, -1, 0), (0, 1, 0))
        assert controller.fills_template
        plan = controller.plan(branches(3), AMPLE)
        assert (plan.nodes, plan.total, plan.template) == ((3, 3, 3), 9, controller.template)

    @pytest.mark.parametrize(
        ("nodes", "rows", "each"), [(None, 99, 3), (2, 99, 2), (9, 99, 3), (3, 7, 2), (3, 2, 0), (0, 9, 0)]
    )
    def test_everybody_gets_the_same_best_nodes(self, tmp_path: Path, nodes: int | None, rows: int, each: int) -> None:
        file = written(tmp_path, json.dumps({"parents": [-1, -1, 0], "ranks": [0, 1, 0]}))
        plan = FromTemplate(file, nodes).plan(branches(3), spare(rows))
        assert (plan.nodes, plan.total) == ((each,) * 3, 3 * each)

    def test_a_missing_file_is_named_with_what_there_is(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"file must be .* stand, token_recycling; there is no /no/such\.json"):
            FromTemplate("/no/such.json")
        with pytest.raises(ValueError, match="there is no stond"):
            FromTemplate("stond")
        with pytest.raises(ValueError, match="there is no"):
            FromTemplate(str(tmp_path))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "3",
            "null",
            '{"parents": [-1]}',
            '{"parents": 3, "ranks": [0]}',
            '{"parents": [-1], "ranks": [0, 1]}',
            '{"parents": [0], "ranks": [0]}',
            '{"parents": ["x"], "ranks": [0]}',
            '{"parents": [null], "ranks": [0]}',
        ],
    )
    def test_a_broken_file_is_named(self, tmp_path: Path, text: str) -> None:
        file = written(tmp_path, text)
        with pytest.raises(ValueError, match=r"^file=.*tree\.json is no tree template"):
            FromTemplate(file)

    def test_a_file_that_is_no_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "tree.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=r"^file=.*tree\.json is no tree template"):
            FromTemplate(str(tmp_path / "tree.json"))

    @pytest.mark.parametrize("name", BUNDLED)
    def test_those_that_ship_are_trees_in_order_of_worth(self, name: str) -> None:
        template = FromTemplate(name).template
        assert 10 <= len(template) <= 200
        assert template.parents[0] == -1
        assert FromTemplate(name, nodes=5).plan(branches(1), AMPLE).nodes == (5,)

    def test_a_wrong_number_of_nodes_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="nodes must be an int >= 0 or null, got -1"):
            FromTemplate("token_recycling", -1)


class TestFixedNumbers:
    def test_a_chain_for_everybody(self) -> None:
        plan = Chain(4).plan(branches(3), AMPLE)
        assert (plan.nodes, plan.total, plan.template) == ((4, 4, 4), 12, Template.chain(4))
        assert Chain(4).plan(branches(3), spare(8)).nodes == (2, 2, 2)
        assert Chain(0).plan(branches(3), AMPLE).total == Chain(4).plan(branches(3), spare(2)).total == 0
        assert Chain.fills_template

    def test_a_fixed_number_goes_wherever_acceptance_is_likeliest(self) -> None:
        plan = Fixed(4).plan(branches(3), AMPLE)
        assert (plan.total, plan.template, plan.price) == (12, None, None)
        assert min(plan.nodes) == 12
        assert Fixed(4).plan(branches(3), spare(8)).total == 8
        assert Fixed(0).plan(branches(3), AMPLE).total == 0
        assert not Fixed.fills_template

    @pytest.mark.parametrize(
        "controller", [Chain(4), Fixed(4), Throughput(), Goodput()], ids=lambda c: type(c).__name__
    )
    def test_nobody_to_plan_for_is_fine(self, controller: Controller) -> None:
        assert controller.plan([], AMPLE).nodes == ()
        controller.observe([], None)

    @pytest.mark.parametrize("controller", [Chain(4), Fixed(4)], ids=name_of)
    def test_they_do_not_claim_to_know_the_time(self, controller: Controller) -> None:
        assert controller.plain_seconds(3, 100) == 0
        assert not isinstance(controller, Paced)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Chain(-1), "length must be an int >= 0, got -1"),
            (lambda: Fixed(True), "nodes must be an int >= 0, got True"),
            (lambda: Throughput(2.5), "most_rows must be an int >= 0, got 2.5"),  # type: ignore[arg-type]
            (lambda: Goodput(longest=-2), "longest must be an int >= 0, got -2"),
            (lambda: Goodput(first=1.0), "first must be between 0 and 1, got 1.0"),
            (lambda: Goodput(smoothing=0), "smoothing must be between 0 and 1, got 0"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, make: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make()


@dataclass
class Machine:
    """Takes so much for a round, give or take `noise`, now and then `hiccup` times as long."""

    base: float = 0.02
    per_branch: float = 4e-4
    per_row: float = 2e-4
    per_context: float = 1e-6
    noise: float = 0.0
    hiccup: float = 1.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def seconds(self, count: int, drafted: int, context: int) -> float:
        return self.base + self.per_branch * count + self.per_row * drafted + self.per_context * context

    def cost(self, count: int, drafted: int, context: int) -> RoundCost:
        seconds = self.seconds(count, drafted, context) * self.rng.lognormal(0, self.noise)
        if self.rng.random() < 0.05:
            seconds *= self.hiccup
        return RoundCost(count, count + drafted, context, seconds)

    def costs(self, rounds: int) -> list[RoundCost]:
        """Of rounds of any size."""
        sizes = zip(
            self.rng.integers(1, 33, rounds),
            self.rng.integers(0, 200, rounds),
            self.rng.integers(50, 20_000, rounds),
            strict=True,
        )
        return [self.cost(int(count), int(drafted), int(context)) for count, drafted, context in sizes]


GRID = list(product((1, 4, 32), (0, 20, 150), (100, 10_000)))


def worst(curve: CostCurve, machine: Machine) -> float:
    """The largest relative error over rounds of all sizes."""
    return max(abs(curve.seconds(*size) / machine.seconds(*size) - 1) for size in GRID)


class TestCostCurve:
    def test_until_something_was_measured_a_round_has_some_price(self) -> None:
        curve = CostCurve()
        assert curve.per_row > 0
        assert (
            curve.seconds(1, 0, 100) < curve.seconds(4, 0, 100) < curve.seconds(4, 10, 100) < curve.seconds(4, 10, 900)
        )

    @pytest.mark.parametrize(
        ("machine", "error"),
        [
            (Machine(), 0.01),
            (Machine(noise=0.1), 0.08),
            (Machine(per_row=0.0), 0.07),
            (Machine(base=1e-4, per_branch=0, per_row=1e-5, per_context=1e-9), 0.01),
        ],
        ids=["exact", "noisy", "rows are free", "fast"],
    )
    def test_it_recovers_a_linear_machine(self, machine: Machine, error: float) -> None:
        curve = CostCurve(tuple(machine.costs(100)))
        for cost in machine.costs(1000):
            curve.observe(cost)
        assert worst(curve, machine) < error
        assert curve.per_row == pytest.approx(machine.per_row, rel=0.15, abs=1e-3 * machine.base)

    @pytest.mark.parametrize(("plain", "rows"), [(1.0, 3.0), (1.5, 1.0), (0.7, 2.0), (5.0, 5.0)])
    def test_rounds_refine_what_was_measured_at_the_start(self, plain: float, rows: float) -> None:
        """The start measured without drafting, and perhaps while the machine was busy."""
        start = Machine(noise=0.05)
        real = Machine(0.02 * plain, 4e-4 * plain, 2e-4 * rows, 1e-6 * plain, noise=0.05)
        curve = CostCurve(tuple(start.costs(50)))
        for cost in real.costs(1500):
            curve.observe(cost)
        assert worst(curve, real) < 0.12
        assert curve.per_row == pytest.approx(real.per_row, rel=0.15)

    def test_it_ignores_rounds_that_somebody_else_slowed_down(self) -> None:
        calm, machine = Machine(noise=0.05), Machine(noise=0.05, hiccup=30.0)
        curve = CostCurve(tuple(calm.costs(50)))
        for cost in machine.costs(1500):
            curve.observe(cost)
        assert worst(curve, machine) < 0.06

    def test_it_starts_from_what_was_measured(self) -> None:
        machine = Machine(noise=0.02)
        curve = CostCurve(tuple(machine.costs(30)))
        assert worst(curve, machine) < 0.1

    def test_rounds_that_are_all_alike_do_not_undo_what_was_measured(self) -> None:
        """One size says nothing of what a row costs."""
        machine = Machine(noise=0.02)
        curve = CostCurve(tuple(machine.costs(30)))
        for _ in range(2000):
            curve.observe(machine.cost(16, 40, 5000))
        assert curve.seconds(16, 40, 5000) == pytest.approx(machine.seconds(16, 40, 5000), rel=0.03)
        assert curve.per_row == pytest.approx(machine.per_row, rel=0.5)

    @pytest.mark.parametrize("slower", [0.3, 2.0, 10.0])
    def test_a_machine_that_is_slower_from_now_on_is_learned(self, slower: float) -> None:
        machine = Machine()
        curve = CostCurve(tuple(machine.costs(30)))
        slow = Machine(machine.base * slower, machine.per_branch * slower, machine.per_row * slower, 1e-6 * slower)
        for cost in slow.costs(2000):
            curve.observe(cost)
        assert worst(curve, slow) < 0.1

    def test_nothing_is_ever_negative(self) -> None:
        rng = np.random.default_rng(4)
        for _ in range(30):
            curve = CostCurve()
            for seconds in rng.lognormal(-5, 2, size=64):
                count = int(rng.integers(1, 9))
                curve.observe(RoundCost(count, count + int(rng.integers(0, 30)), int(rng.integers(0, 999)), seconds))
            assert curve.per_row >= 0
            assert min(curve.seconds(*size) for size in GRID) >= 0
            assert np.isfinite(curve.seconds(4, 4, 4))

    def test_rounds_without_drafts_leave_the_price_of_a_row_at_what_was_measured(self) -> None:
        machine = Machine()
        curve = CostCurve(tuple(machine.costs(30)))
        for _ in range(1000):
            curve.observe(machine.cost(8, 0, 800))
        assert curve.per_row == pytest.approx(machine.per_row, rel=0.2)


class TestThroughput:
    def test_what_is_worth_feeding_is_the_best_of_all_numbers(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(300):
            price = Price(float(rng.lognormal(0, 1)), float(rng.lognormal(-3, 2)))
            count, reach = int(rng.integers(1, 9)), -np.sort(-(rng.random(int(rng.integers(0, 40))) ** 2))
            rates = [
                (count + reach[:n].sum()) / (price.round_seconds + n * price.row_seconds) for n in range(len(reach) + 1)
            ]
            best = price.worth(reach, count)
            assert rates[best] == pytest.approx(max(rates))
            if best:  # and whoever is in it may not be under the floor that spares the search
                assert reach[best - 1] >= price.floor(count) - 1e-9 or price.floor(count) == 0.9

    def test_free_rows_are_all_taken_and_dear_ones_never(self) -> None:
        reach = np.array([0.9, 0.5, 0.1, 0.001])
        assert Price(1.0, 0.0).worth(reach, 1) == Price(0.0, 0.0).worth(reach, 1) == 4
        assert Price(0.01, 1.0).worth(reach, 1) == 0
        assert Price(1.0, 1.0).worth(np.empty(0), 3) == 0

    def test_it_plans_within_the_rows_there_are_at_the_price_it_has_learned(self) -> None:
        controller, machine = Throughput(most_rows=50), Machine()
        controller.pace(machine.costs(40))
        assert isinstance(controller, Paced)
        for rows in (0, 7, 1000):
            plan = controller.plan(branches(3), spare(rows))
            assert plan.total == min(rows, 50)
            assert plan.template is None
        assert plan.price is not None
        assert plan.price.row_seconds == pytest.approx(machine.per_row, rel=0.01)
        assert plan.price.round_seconds == pytest.approx(machine.seconds(3, 0, 100), rel=0.01)
        assert controller.plain_seconds(3, 100) == plan.price.round_seconds

    def test_rounds_that_filled_prompts_are_not_counted(self) -> None:
        controller = Throughput()
        before = controller.plain_seconds(3, 100)
        for _ in range(40):
            controller.observe([], None)
        assert controller.plain_seconds(3, 100) == before > 0


def decode(trials: Trials, count: int, rounds: int, *, gain: float, cost: float, rng: random.Random) -> float:
    """Plain rounds' share, on a machine where guessing commits `gain` times the tokens for `cost` times the seconds."""
    plain = 0
    for _ in range(rounds):
        guess = trials.guess(count)
        plain += not guess
        took = (cost if guess else 1.0) * rng.lognormvariate(0, 0.15) * (20.0 if rng.random() < 0.02 else 1.0)
        trials.observe(count, guessed=guess, tokens=round(count * gain) if guess else count, cost=took)
    return plain / rounds


class TestTrials:
    """Guessing is given up where it does not pay, taken up again where it does, at a small price either way."""

    @pytest.mark.parametrize(("gain", "cost"), [(2.0, 1.2), (1.5, 1.2)])
    def test_what_pays_is_kept(self, gain: float, cost: float) -> None:
        trials, rng = Trials(), random.Random(1)
        decode(trials, 20, 200, gain=gain, cost=cost, rng=rng)
        assert decode(trials, 20, 1000, gain=gain, cost=cost, rng=rng) < 0.04

    @pytest.mark.parametrize(("gain", "cost"), [(1.2, 1.6), (1.0, 1.2)])
    def test_what_does_not_pay_is_left(self, gain: float, cost: float) -> None:
        trials, rng = Trials(), random.Random(2)
        assert decode(trials, 20, 200, gain=gain, cost=cost, rng=rng) > 0.75
        assert decode(trials, 20, 1000, gain=gain, cost=cost, rng=rng) > 0.94

    def test_guessing_may_learn_first(self) -> None:
        trials, rng = Trials(), random.Random(5)
        for known in range(60):
            decode(trials, 4, 5, gain=1 + known / 40, cost=1.2, rng=rng)
        assert decode(trials, 4, 300, gain=2.5, cost=1.2, rng=rng) < 0.1

    def test_it_changes_its_mind_when_things_change(self) -> None:
        trials, rng = Trials(), random.Random(3)
        decode(trials, 20, 500, gain=1.0, cost=1.5, rng=rng)
        decode(trials, 20, 500, gain=2.5, cost=1.2, rng=rng)
        assert decode(trials, 20, 300, gain=2.5, cost=1.2, rng=rng) < 0.1

    def test_loads_are_judged_apart(self) -> None:
        trials, rng = Trials(), random.Random(4)
        for _ in range(30):
            decode(trials, 2, 20, gain=2.0, cost=1.1, rng=rng)
            decode(trials, 64, 20, gain=1.1, cost=1.5, rng=rng)
        assert decode(trials, 2, 200, gain=2.0, cost=1.1, rng=rng) < 0.1
        assert decode(trials, 64, 200, gain=1.1, cost=1.5, rng=rng) > 0.9

    def test_what_plain_rounds_take_is_known_after_the_first_trial(self) -> None:
        trials = Trials()
        assert trials.plain_cost(4) is None
        while trials.guess(4):
            trials.observe(4, guessed=True, tokens=8, cost=1.0)
        assert trials.plain_cost(4) is None
        trials.observe(4, guessed=False, tokens=4, cost=1.5)
        assert trials.plain_cost(4) == trials.plain_cost(100) == pytest.approx(1.5)


def test_a_pause_is_plain_and_teaches_the_drafter_now_and_then() -> None:
    controller = Throughput()
    controller.pace(Machine().costs(40))
    taught = []
    for _ in range(400):
        plan = controller.plan(branches(3), AMPLE)
        taught += [plan.learn] if not plan.total else []
        seconds = controller.curve.seconds(3, 0, 100) * (3.0 if plan.total else 1.0)
        controller.observe([Feedback(one, Draft(), ()) for one in branches(3)], RoundCost(3, 3, 100, seconds))
    assert len(taught) > 300
    assert 0.2 < sum(taught) / len(taught) < 0.3


def expected_tokens(source: Fake, text: Tokens, draft: Draft) -> float:
    """Nodes that come true, for a target whose distribution is the source's."""
    total, reach = 0.0, {-1: 1.0}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        context = text + tuple(draft.tokens[i] for i in draft.path_to(parent))
        reach[node] = reach[parent] * source.table(context)[token]
        total += reach[node]
    return total


def said(source: Fake, text: Tokens, draft: Draft, rng: random.Random) -> tuple[Tokens, Tokens]:
    """The path that such a target accepts, and the token after it."""
    path: list[int] = []
    node = -1
    while True:
        table = source.table(text)
        token = rng.choices([*table, 0], [*table.values(), max(0.0, 1 - sum(table.values()))])[0]
        children = {draft.tokens[i]: i for i, parent in enumerate(draft.parents) if parent == node}
        if token not in children:
            return tuple(path), (*(draft.tokens[i] for i in path), token)
        node = children[token]
        path.append(node)
        text += (token,)


def simulate(controller: Controller, machine: Machine, count: int, rounds: int = 100) -> float:
    """Expected tokens per second of the second half, on a simulated machine."""
    source, rng = Fake(vocabulary=12, known=12, reads=1), random.Random(0)
    drafter = TreeDrafter(source, "likely", width=3, depth=6)
    texts: list[Tokens] = [(i, i + 1, i + 2) for i in range(count)]
    tokens = seconds = 0.0
    for number in range(rounds):
        live = [Branch(i, "a problem", text, i, SamplingParams(), 1000) for i, text in enumerate(texts)]
        load = Load(count, 0, sum(map(len, texts)), 400)
        plan = controller.plan(live, load)
        drafts = drafter.propose(live, plan) if plan.total else [Draft()] * count
        feedback = []
        for i, (one, draft) in enumerate(zip(live, drafts, strict=True)):
            path, new = said(source, one.tokens, draft, rng)
            feedback.append(Feedback(one, draft, path))
            texts[i] += new
        cost = machine.cost(count, sum(map(len, drafts)), load.context_tokens)
        if number >= rounds // 2:
            tokens += count + sum(expected_tokens(source, o.tokens, d) for o, d in zip(live, drafts, strict=True))
            seconds += machine.seconds(count, sum(map(len, drafts)), load.context_tokens)
        drafter.observe(feedback)
        controller.observe(feedback, cost)
    return tokens / seconds


@pytest.mark.parametrize(("row_share", "count"), [(0.001, 1), (0.02, 4), (0.1, 2), (0.1, 6), (1.0, 4)])
def test_on_a_machine_throughput_is_as_good_as_the_best_number_and_as_no_drafts(row_share: float, count: int) -> None:
    """From rows that are nearly free to rows that cost as much as a round."""
    machine = Machine(base=1.0, per_branch=0.01, per_row=row_share, per_context=1e-6, noise=0.05)
    throughput = Throughput()
    throughput.pace([machine.cost(b, n, 100) for b in (1, 8) for n in (0, 4, 16) for _ in range(3)])
    got = simulate(throughput, machine, count)
    fixed = {n: simulate(Fixed(n), machine, count) for n in (0, 1, 2, 4, 8)}
    assert got > 0.95 * max(fixed.values())  # trials cannot tell a gain of a few percent from luck
    assert got > 0.98 * fixed[0]


class TestGoodput:
    @staticmethod
    def value(lengths: Sequence[int], rates: Sequence[float], curve: CostCurve, load: Load) -> float:
        tokens = sum((1 - rate ** (k + 1)) / (1 - rate) for k, rate in zip(lengths, rates, strict=True))
        return tokens / curve.seconds(len(lengths), sum(lengths), load.context_tokens)

    @pytest.mark.parametrize("per_row", [1e-5, 1e-3, 4e-3, 8e-3, 0.1])
    @pytest.mark.parametrize("rows", [1000, 5])
    def test_its_lengths_are_the_best_of_all(self, per_row: float, rows: int) -> None:
        curve = CostCurve(tuple(Machine(per_row=per_row).costs(50)))
        rng = random.Random(0)
        for _ in range(12):
            controller, rates = Goodput(longest=4, curve=curve), [rng.uniform(0.02, 0.98) for _ in range(3)]
            controller._rates.update(enumerate(rates))
            plan = controller.plan(branches(3), spare(rows))
            assert plan.total == sum(plan.nodes) <= rows
            assert plan.template == Template.chain(4)
            every = [lengths for lengths in product(range(5), repeat=3) if sum(lengths) <= rows]
            best = max(self.value(lengths, rates, curve, spare(rows)) for lengths in every)
            assert self.value(plan.nodes, rates, curve, spare(rows)) == pytest.approx(best)

    def test_free_rows_make_the_longest_chains_and_dear_ones_none(self) -> None:
        assert Goodput(longest=4).plan(branches(3), AMPLE).nodes == (4, 4, 4)
        dear = CostCurve(tuple(Machine(base=1e-4, per_branch=0, per_row=1.0).costs(50)))
        assert Goodput(curve=dear).plan(branches(3), AMPLE).total == 0

    def test_rates_are_learned_branch_by_branch(self) -> None:
        controller, rng = Goodput(smoothing=0.05), random.Random(0)
        true = [0.95, 0.5, 0.1]
        draft = Draft((1, 2, 3, 4), (-1, 0, 1, 2))
        for _ in range(300):
            feedback = []
            for one, rate in zip(branches(3), true, strict=True):
                kept = next((k for k in range(4) if rng.random() > rate), 4)
                feedback.append(Feedback(one, draft, tuple(range(kept))))
            controller.observe(feedback, None)
        for at, rate in enumerate(true):
            assert controller._rates[at] == pytest.approx(rate, abs=0.15)
        controller.pace(Machine(per_row=2e-3).costs(50))
        lengths = controller.plan(branches(3), AMPLE).nodes
        assert lengths[0] > lengths[1] >= lengths[2]

    def test_a_branch_without_a_draft_teaches_nothing(self) -> None:
        controller = Goodput()
        controller.observe([Feedback(one, Draft(), ()) for one in branches(2)], None)
        assert controller._rates == {0: 0.7, 1: 0.7}

    def test_branches_of_long_ago_are_forgotten(self) -> None:
        controller = Goodput()
        for at in range(5000):
            one = Branch(at, "", (1,), 1, SamplingParams(), 9)
            controller.observe([Feedback(one, Draft((1,), (-1,)), (0,))], None)
        assert len(controller._rates) <= 4096
        assert 4999 in controller._rates


class TestRehearsal:
    def test_it_measures_rounds_of_several_sizes(self) -> None:
        costs = rehearse(HashBackend())
        sizes = {(cost.branches, cost.rows) for cost in costs}
        assert {count for count, _ in sizes} == {1, 8, 32}
        assert {rows / count for count, rows in sizes} == {1, 5, 17}
        assert all(cost.seconds > 0 and cost.context_tokens > 32 * cost.branches for cost in costs)
        assert CostCurve(tuple(costs)).seconds(8, 8, 500) > 0

    def test_it_leaves_nothing_behind(self) -> None:
        backend, before = HashBackend(), set(threading.enumerate())
        rehearse(backend)
        assert set(threading.enumerate()) <= before
        requests = mixed_requests(6)
        with engine_of(backend) as rehearsed, engine_of(HashBackend()) as fresh:
            after, expected = (asyncio.run(engine.generate(requests)) for engine in (rehearsed, fresh))
            assert rehearsed.stats.prompt_tokens == fresh.stats.prompt_tokens
        assert [g.tokens for g in after] == [g.tokens for g in expected]

    def test_a_small_vocabulary_is_no_obstacle(self) -> None:
        assert rehearse(HashBackend(vocab_size=3))

    def test_a_model_that_breaks_says_so(self) -> None:
        """Not a rehearsal without costs, from which nothing can be learned."""
        backend = HashBackend()
        backend.fail_at = 2
        with pytest.raises(RuntimeError, match="the toy broke"):
            rehearse(backend)
