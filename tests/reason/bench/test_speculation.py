"""The speculation benchmark on sizes too small to mean anything: what it counts, who must equal plain decoding."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoding.core import SamplingParams, Spent, Tokens
from decoding.speculation.controllers.template import FromTemplate
from decoding.speculation.interfaces import Branch, Draft, Feedback, Plan, Price, Template
from decoding.stats import EngineStats
from reason.bench.drafter_setups import AT_EQUAL_NODES, AT_FULL_SPEED, ORACLE, find_tunable
from reason.bench.goals import Bar, bars
from reason.bench.oracle import Oracle
from reason.bench.plots import plot_acceptance, plot_speed, require_matplotlib
from reason.bench.points import Point, Race
from reason.bench.speculation import QUICK, SPECIAL, Bench, Settings
from reason.bench.speculation_report import markdown, tables
from reason.bench.speculation_run import Run
from reason.bench.tables import Figures
from reason.bench.trees import static_tree
from reason.bench.tune import PlaceCounter, best_places, tune
from reason.bench.workload import Question, Target, Workload, questions

TOY = Settings(
    problems=1, nodes=(4,), racers=(*AT_FULL_SPEED, *SPECIAL), live=(8,), temperatures=(1.0,), repeats=1,
    trajectories=2, tuning_trajectories=1, tuning_nodes=12, max_tokens=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(device="cpu")


@pytest.fixture(scope="module")
def result(target: Target, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    said: list[str] = []
    found = Bench(target, TOY, tmp_path_factory.mktemp("templates"), say=said.append).result()
    assert len(said) >= len(found["acceptance"]) + len(found["speed"])
    return found


def test_everybody_is_measured_at_every_point(result: dict[str, Any]) -> None:
    assert [row["contender"] for row in result["acceptance"]] == [*AT_EQUAL_NODES, ORACLE]
    races = Counter((row["temperature"], row["live"]) for row in result["speed"])
    assert races == {(1.0, 8): len(AT_FULL_SPEED) + 2}


def test_coupled_acceptance_gives_the_texts_of_plain_decoding(result: dict[str, Any]) -> None:
    exact = [row for row in result["acceptance"] + result["speed"] if row["differing"] is not None]
    assert {row["contender"] for row in exact} >= {"stand_coupled", "stand", "token_recycling", ORACLE}
    assert [row["differing"] for row in exact] == [0] * len(exact)


def test_nobody_gets_more_nodes_than_the_budget(result: dict[str, Any]) -> None:
    for row in result["acceptance"]:
        assert row["nodes_per_forward"] <= row["nodes"]
        assert all(tokens >= 1 for tokens in row["by_family"].values())
        assert row["tokens_per_forward"] <= 1 + row["nodes"]


def test_the_oracle_accepts_all_it_drafts(result: dict[str, Any]) -> None:
    for row in result["speed"]:
        if row["contender"] == ORACLE:
            assert row["nodes_per_forward"] > 0
            everything = (1 + row["nodes_per_forward"]) * 0.8  # the mean over families is not that over passes
            assert row["tokens_per_forward"] > everything


def test_the_report_has_verdicts_tables_and_the_json_line(result: dict[str, Any]) -> None:
    complete = {**result, "machine": {"cpus": 2}}
    text = markdown(complete, "python scripts/bench/engine_and_speculation.py speculation", ["plot.png"])
    assert "short by" in text or "PASS" in text
    assert "64 live | 0.97 | - | - | not measured" in text
    assert "differ from plain decoding: 0 of" in text
    assert "![plot.png](plot.png)" in text
    assert json.loads(text.split("```json\n")[1].split("\n```")[0]) == json.loads(json.dumps(complete))
    for figures in tables(complete):
        assert isinstance(figures, Figures)
        assert {len(row) for row in figures.rows} == {len(figures.header)}, figures.title


def test_a_part_alone_leaves_the_other_unmeasured(target: Target, tmp_path: Path) -> None:
    settings = replace(TOY, racers=("stand", ORACLE), live=(1, 2), temperatures=(0.0, 0.6))
    found = Bench(target, settings, tmp_path).result(nodes=False)
    assert found["acceptance"] == []
    assert [(row["temperature"], row["live"], row["differing"]) for row in found["speed"][::2]] == [
        (0.0, 1, 0), (0.0, 2, 0), (0.6, 1, 0), (0.6, 2, 0),
    ]  # fmt: skip
    assert {bar["verdict"] for bar in found["bars"]} == {"not measured"}
    assert "## Bars" in markdown({**found, "machine": {}}, "command")


def test_plots_are_drawn(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, plot in (("acceptance", plot_acceptance), ("speed", plot_speed)):
        plot(tmp_path / f"{name}.png", result)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason.bench.plots.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"reason-search\[plots\]"):
        require_matplotlib()


def test_a_wrong_name_is_refused_with_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"contenders must be from stand_coupled, .*; got standard"):
        Settings(contenders=("standard",))
    with pytest.raises(ValueError, match=r"racers must be from .*oracle, plain; got miracle"):
        Settings(racers=("miracle",))
    with pytest.raises(ValueError, match="contender must be one of stand_rejection"):
        find_tunable("stand_coupled")
    assert len(QUICK.contenders) < len(Settings().contenders)


def test_a_workload_has_equally_many_of_each_family_turn_by_turn(target: Target) -> None:
    asked = questions(target.prompt, per_family=2, split="heldout")
    families = [question.family for question in asked]
    assert Counter(families) == dict.fromkeys(families, 2)
    assert families[:4] == families[4:]
    assert len(set(families)) == 4
    work = Workload(asked, 3, 1.0, 20)
    assert len({request.seed for request in work.requests()}) == 24
    assert [request.group for request in work.requests()][:4] == [asked[0].id] * 3 + [asked[1].id]
    assert work.requests() == work.requests()
    others = replace(work, first=3).requests()
    assert not {request.seed for request in others} & {request.seed for request in work.requests()}


def test_templates_are_learned_from_other_problems_than_they_are_judged_by(target: Target) -> None:
    train = questions(target.prompt, per_family=8, split="train")
    heldout = questions(target.prompt, per_family=8, split="heldout")
    assert not {question.prompt for question in train} & {question.prompt for question in heldout}


# --- the oracle


def branch(tokens: Tokens, remaining: int = 9, seed: int = 1) -> Branch:
    return Branch(7, "p", tokens, seed, SamplingParams(), remaining)


def test_the_oracle_drafts_the_future_as_far_as_it_may() -> None:
    oracle = Oracle({("p", 1): (1, 2, 3, 4, 5, 6)}, depth=3)
    here = branch((1, 2))
    for plan, remaining, tokens in (
        (Plan((9,), 9), 9, (3, 4, 5)),
        (Plan((9,), 2), 9, (3, 4)),
        (Plan((1,), 9), 9, (3,)),
        (Plan((9,), 9), 2, (3,)),
        (Plan((9,), 9), 1, ()),
    ):
        (draft,) = oracle.propose([branch(here.tokens, remaining)], plan)
        draft.check()
        assert draft.tokens == tokens
    (cheap,), (dear,) = (oracle.propose([here], Plan((9,), 9, Price(1.0, row))) for row in (0.1, 2.0))
    assert (len(cheap), len(dear)) == (3, 0)
    assert oracle.propose([branch((1, 9)), branch((1, 2), seed=5)], Plan((9, 9), 18)) == [Draft(), Draft()]


# --- templates


def test_the_static_tree_is_as_large_and_deep_as_published() -> None:
    tree = static_tree()
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    assert (len(tree), max(depths), max(tree.ranks)) == (625, 20, 9)


class Scripted:
    """Proposes one draft and remembers what it was told."""

    feedback_k = 3

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.heard: list[Feedback] = []

    def propose(self, branches: Any, plan: Plan) -> list[Draft]:
        return [self.draft] * len(branches)

    def observe(self, feedback: Any) -> None:
        self.heard += feedback


def test_accepted_nodes_are_counted_by_their_place_in_the_template() -> None:
    """A draft whose anchor has only one child, so that its nodes' numbers are not the template's."""
    template = Template((-1, -1, 0, 0, 2), (0, 1, 0, 1, 0))
    draft = Draft((5, 6, 7, 8), (-1, 0, 0, 1))  # places 0, 2, 3, 4
    inner = Scripted(draft)
    counter = PlaceCounter(inner, template)
    assert counter.feedback_k == 3
    here = branch((1,))
    assert counter.propose([here], Plan((5,), 5, template=template)) == [draft]
    feedback = [Feedback(here, draft, (0, 1, 3)), Feedback(here, draft, (0, 2)), Feedback(here, Draft(), ())]
    counter.observe(feedback)
    assert counter.counts == [2, 0, 1, 1, 1]
    assert inner.heard == feedback


def test_the_best_places_come_first_parents_and_elder_siblings_before_them() -> None:
    template = Template((-1, -1, 0, -1), (0, 1, 0, 2))
    tuned = best_places(template, [5, 1, 3, 4], keep=9)
    assert tuned.template == Template((-1, 0, -1, -1), (0, 0, 1, 2))
    assert tuned.counts == (5, 3, 1, 4)  # the third child is the better one, but the second must come before it
    assert best_places(template, [0, 0, 0, 0], keep=2).template == Template((-1, -1), (0, 1))


def test_a_learned_template_is_a_file_the_controller_reads(target: Target, tmp_path: Path) -> None:
    contender = find_tunable("stand_rejection")
    work = Workload(questions(target.prompt, per_family=1, split="train")[:1], 2, 1.0, 12)
    tuned = tune(target, work, contender.drafter(), contender.rule, static_tree(20, 6), keep=8, live=2)
    assert len(tuned.template) == 8
    assert sum(tuned.counts) > 0
    file = tmp_path / "template.json"
    file.write_text(json.dumps(tuned.as_dict({"of": "a test"})))
    assert FromTemplate(str(file), 8).template == tuned.template
    assert tuned.levels().rows[0] == [str(n) for n in Counter(_depths(tuned.template)).values()]


def _depths(template: Template) -> list[int]:
    depths: list[int] = []
    for parent in template.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return sorted(depths)


# --- figures and bars


def run_of(tokens: list[int], seconds: float = 1.0) -> Run:
    """Two families, two trajectories each, ten passes a trajectory."""
    work = Workload((Question("a", "0", (1,)), Question("b", "1", (1,))), 2, 1.0, 99)
    spent = tuple(Spent(tokens=n, forwards=10, drafted=40) for n in tokens)
    return Run(work, seconds, spent, tuple((n,) for n in tokens), EngineStats())


def test_a_run_averages_over_families_not_over_tokens() -> None:
    run = run_of([10, 30, 60, 60])
    assert run.by_family() == {"a": 2.0, "b": 6.0}
    assert run.by_family(without=0) == {"a": 3.0, "b": 6.0}
    assert (run.tokens_per_forward, run.nodes_per_forward, run.rate) == (4.0, 4.0, 160.0)
    assert run.differing(run_of([10, 30, 61, 60])) == 1


def test_bars_compare_means_and_the_worst_family() -> None:
    runs = {
        "stand_coupled": run_of([30, 30, 60, 60]),
        "stand_rejection": run_of([30, 30, 50, 50]),
        "likely_template": run_of([20, 20, 20, 20]),
        "likely_best_first": run_of([25, 25, 35, 35]),
        "token_recycling": run_of([20, 20, 30, 30]),
    }
    found = bars([Point(name, 1.0, 8, run, None) for name, run in runs.items()], [], [8])
    gain, deterministic, recycling, lookup, worst = found[:5]
    assert (gain.got, gain.error, gain.verdict) == (4.5 / 4.0, 0.0, "PASS")
    assert deterministic.got == 4.5 / 3.0
    assert recycling.verdict == "short by 0.200"
    assert lookup == Bar(lookup.what, 2.0)
    assert (worst.got, worst.wanted, worst.verdict) == (1.0, 0.98, "PASS")


def test_errors_tell_how_much_trajectories_differ() -> None:
    """The jackknife of a mean is its standard error."""
    ours, theirs = run_of([30, 50, 30, 50]), run_of([20, 20, 20, 20])
    points = [Point("stand_coupled", 1.0, 8, ours, None), Point("stand_rejection", 1.0, 8, theirs, None)]
    assert bars(points, [], [8])[0].error == pytest.approx(0.5)  # of 1.5 and 2.5


def test_speed_is_the_median_of_ratios_to_the_plain_run_beside() -> None:
    race = Race("stand", 1.0, 16)
    for mine, plain in ((1.0, 2.0), (2.0, 2.0), (1.0, 9.0)):
        race.runs.append(run_of([10] * 4, mine))
        race.plain.append(run_of([10] * 4, plain))
    assert race.speed == 2.0
    assert race.as_dict()["speeds"] == [2.0, 1.0, 9.0]
    assert [bar.got for bar in bars([], [race], [])] == [None, 2.0, None]
