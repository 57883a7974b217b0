"""The speculation benchmark on sizes too small for conclusions: its counts, and texts equal to plain decoding."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens, Usage
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.draft import Draft, TreeTemplate
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan, Feedback
from decoding.stats import EngineStats
from reason.bench.drafter_setups import AT_EQUAL_NODES, AT_FULL_SPEED, ORACLE, find_tunable_setup
from reason.bench.goals import Goal, evaluate_goals
from reason.bench.oracle import OracleDrafter
from reason.bench.plots import plot_acceptance, plot_speed, require_matplotlib
from reason.bench.speculation import QUICK, REFERENCES, SpeculationBench, SpeculationSettings
from reason.bench.speculation_report import format_report, make_tables
from reason.bench.speculation_run import AcceptancePoint, SpeculationRun, SpeedRun
from reason.bench.tune import TemplateNodeCounter, best_nodes, static_tree, tune_template
from reason.bench.workload import BundledTarget, Workload, WorkloadQuestion, make_questions
from reason.runs.tables import ResultTable

TOY = SpeculationSettings(
    problems=1, nodes=(4,), speed_setups=(*AT_FULL_SPEED, *REFERENCES), live=(8,), temperatures=(1.0,), repeats=1,
    trajectories=2, tuning_trajectories=1, tuning_nodes=12, max_tokens=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def target() -> BundledTarget:
    return BundledTarget.load(device="cpu")


@pytest.fixture(scope="module")
def result(target: BundledTarget, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    log_lines: list[str] = []
    measured = SpeculationBench(
        target, TOY, tmp_path_factory.mktemp("templates"), log_line=log_lines.append
    ).measure_parts()
    assert len(log_lines) >= len(measured["acceptance"]) + len(measured["speed"])
    return measured


def test_every_drafter_setup_is_measured_at_every_point(result: dict[str, Any]) -> None:
    assert [row["setup"] for row in result["acceptance"]] == [*AT_EQUAL_NODES, ORACLE]
    rows = Counter((row["temperature"], row["live"]) for row in result["speed"])
    assert rows == {(1.0, 8): len(AT_FULL_SPEED) + 2}


def test_coupled_acceptance_gives_the_texts_of_plain_decoding(result: dict[str, Any]) -> None:
    exact = [row for row in result["acceptance"] + result["speed"] if row["num_differing"] is not None]
    assert {row["setup"] for row in exact} >= {"stand_coupled", "stand", "token_recycling", ORACLE}
    assert [row["num_differing"] for row in exact] == [0] * len(exact)


def test_no_drafter_setup_gets_more_nodes_than_the_budget(result: dict[str, Any]) -> None:
    for row in result["acceptance"]:
        assert row["nodes_per_forward"] <= row["nodes"]
        assert all(tokens >= 1 for tokens in row["by_family"].values())
        assert row["tokens_per_forward"] <= 1 + row["nodes"]


def test_oracle_accepts_all_drafts(result: dict[str, Any]) -> None:
    for row in result["acceptance"]:
        if row["setup"] == ORACLE:
            assert row["nodes_per_forward"] > 0
            everything = (1 + row["nodes_per_forward"]) * 0.8  # the mean over families is not that over passes
            assert row["tokens_per_forward"] > everything


def test_report_has_goals_tables_and_the_json_line(result: dict[str, Any]) -> None:
    complete = {**result, "machine": {"cpus": 2}}
    text = format_report(complete, "python scripts/bench/speculation.py", ["plot.png"])
    assert "short by" in text or "PASS" in text
    assert "64 live | 0.97 | - | - | not measured" in text
    assert "differ from plain decoding: 0 of" in text
    assert "![plot.png](plot.png)" in text
    assert json.loads(text.split("```json\n")[1].split("\n```")[0]) == json.loads(json.dumps(complete))
    for table in make_tables(complete):
        assert isinstance(table, ResultTable)
        assert {len(row) for row in table.rows} == {len(table.header)}, table.title


def test_single_part_leaves_the_other_unmeasured(target: BundledTarget, tmp_path: Path) -> None:
    settings = replace(TOY, speed_setups=("stand", ORACLE), live=(1, 2), temperatures=(0.0, 0.6))
    measured = SpeculationBench(target, settings, tmp_path).measure_parts(nodes=False)
    assert measured["acceptance"] == []
    assert [(row["temperature"], row["live"], row["num_differing"]) for row in measured["speed"][::2]] == [
        (0.0, 1, 0), (0.0, 2, 0), (0.6, 1, 0), (0.6, 2, 0),
    ]  # fmt: skip
    assert {goal["verdict"] for goal in measured["goals"]} == {"not measured"}
    assert "## Goals" in format_report({**measured, "machine": {}}, "command")


def test_plot_files_are_drawn(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, plot in (("acceptance", plot_acceptance), ("speed", plot_speed)):
        plot(tmp_path / f"{name}.png", result)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reason.bench.plots.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"reason-search\[plots\]"):
        require_matplotlib()


def test_unknown_name_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"drafter_setups must be from stand_coupled, .*; got standard"):
        SpeculationSettings(drafter_setups=("standard",))
    with pytest.raises(ValueError, match=r"speed_setups must be from .*oracle, plain; got miracle"):
        SpeculationSettings(speed_setups=("miracle",))
    with pytest.raises(ValueError, match="drafter setup must be one of stand_rejection"):
        find_tunable_setup("stand_coupled")
    assert len(QUICK.drafter_setups) < len(SpeculationSettings().drafter_setups)


def test_long_thoughts_of_the_thinker_are_a_workload_too(tmp_path: Path) -> None:
    settings = replace(TOY, speed_setups=("hybrid",), live=(4,), max_tokens=40)
    thinker = BundledTarget.load("thinker", device="cpu")
    measured = SpeculationBench(thinker, settings, tmp_path).measure_parts(nodes=False)
    assert measured["families"] == ["congruences", "remainders"]
    assert [(row["setup"], row["num_differing"]) for row in measured["speed"]] == [("hybrid", 0)]
    assert measured["goals"] == []


def test_workload_alternates_equally_many_questions_of_each_family(target: BundledTarget) -> None:
    questions = make_questions(target.prompt, per_family=2, split="heldout")
    families = [question.family for question in questions]
    assert Counter(families) == dict.fromkeys(families, 2)
    assert families[:4] == families[4:]
    assert len(set(families)) == 4
    work = Workload(questions, 3, 1.0, 20)
    assert len({request.seed for request in work.requests()}) == 24
    assert [request.group for request in work.requests()][:4] == [questions[0].id] * 3 + [questions[1].id]
    assert work.requests() == work.requests()
    others = replace(work, first=3).requests()
    assert not {request.seed for request in others} & {request.seed for request in work.requests()}


def test_template_training_and_heldout_questions_are_disjoint(target: BundledTarget) -> None:
    train = make_questions(target.prompt, per_family=8, split="train")
    heldout = make_questions(target.prompt, per_family=8, split="heldout")
    assert not {question.prompt for question in train} & {question.prompt for question in heldout}


# --- the oracle


def branch(tokens: Tokens, remaining: int = 9, seed: int = 1) -> Branch:
    return Branch(7, "p", tokens, seed, SamplingParams(), remaining)


def test_oracle_drafts_the_future_within_depth_plan_and_length() -> None:
    oracle = OracleDrafter({("p", 1): (1, 2, 3, 4, 5, 6)}, depth=3)
    here = branch((1, 2))
    for plan, remaining, tokens in (
        (DraftPlan((9,), 9), 9, (3, 4, 5)),
        (DraftPlan((9,), 2), 9, (3, 4)),
        (DraftPlan((1,), 9), 9, (3,)),
        (DraftPlan((9,), 9), 2, (3,)),
        (DraftPlan((9,), 9), 1, ()),
    ):
        (draft,) = oracle.propose([branch(here.tokens[:], remaining)], plan)
        draft.assert_invariants()
        assert draft.tokens == tokens
    (cheap,), (dear,) = (
        oracle.propose([here], DraftPlan((9,), 9, CostEstimate.along_line(1.0, row, 9))) for row in (0.1, 2.0)
    )
    assert (len(cheap), len(dear)) == (3, 0)
    assert oracle.propose([branch((1, 9)), branch((1, 2), seed=5)], DraftPlan((9, 9), 18)) == [Draft(), Draft()]


# --- templates


def test_static_tree_is_as_large_and_deep_as_published() -> None:
    tree = static_tree()
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    assert (len(tree), max(depths), max(tree.ranks)) == (625, 20, 9)


class Scripted:
    """Proposes one draft and stores its feedback."""

    feedback_k = 3

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.received: list[Feedback] = []

    def propose(self, branches: Any, plan: DraftPlan) -> list[Draft]:
        return [self.draft] * len(branches)

    def observe(self, feedback: Any) -> None:
        self.received += feedback


def test_accepted_nodes_are_counted_by_their_template_node() -> None:
    """A draft whose anchor has only one child, so that its nodes' numbers are not the template's."""
    template = TreeTemplate((-1, -1, 0, 0, 2), (0, 1, 0, 1, 0))
    draft = Draft((5, 6, 7, 8), (-1, 0, 0, 1))  # places 0, 2, 3, 4
    inner = Scripted(draft)
    counter = TemplateNodeCounter(inner, template)
    assert counter.feedback_k == 3
    here = branch((1,))
    assert counter.propose([here], DraftPlan((5,), 5, template=template)) == [draft]
    feedback = [Feedback(here, draft, (0, 1, 3)), Feedback(here, draft, (0, 2)), Feedback(here, Draft(), ())]
    counter.observe(feedback)
    assert counter.counts == [2, 0, 1, 1, 1]
    assert inner.received == feedback


def test_best_nodes_are_sorted_with_parents_and_elder_siblings_first() -> None:
    template = TreeTemplate((-1, -1, 0, -1), (0, 1, 0, 2))
    tuned = best_nodes(template, [5, 1, 3, 4], keep=9)
    assert tuned.template == TreeTemplate((-1, 0, -1, -1), (0, 0, 1, 2))
    assert tuned.counts == (5, 3, 1, 4)  # the third child is the better one, but the second must come before it
    assert best_nodes(template, [0, 0, 0, 0], keep=2).template == TreeTemplate((-1, -1), (0, 1))


def test_learned_template_is_a_file_that_the_controller_reads(target: BundledTarget, tmp_path: Path) -> None:
    setup = find_tunable_setup("stand_rejection")
    work = Workload(make_questions(target.prompt, per_family=1, split="train")[:1], 2, 1.0, 12)
    tuned = tune_template(target, work, setup.make_drafter(), setup.rule, static_tree(20, 6), keep=8, live=2)
    assert len(tuned.template) == 8
    assert sum(tuned.counts) > 0
    file = tmp_path / "template.json"
    file.write_text(json.dumps(tuned.to_json({"of": "a test"})))
    assert TemplateController(str(file), 8).template == tuned.template
    assert tuned.depth_table().rows[0] == [str(n) for n in Counter(_depths(tuned.template)).values()]


def _depths(template: TreeTemplate) -> list[int]:
    depths: list[int] = []
    for parent in template.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return sorted(depths)


def test_template_of_another_model_or_of_other_sizes_is_learned_again(target: BundledTarget, tmp_path: Path) -> None:
    toy = replace(TOY, drafter_setups=("stand_rejection",), kv_mib=32)
    learned_lines: list[list[str]] = []
    thinker = BundledTarget.load("thinker", device="cpu")
    for model, settings in ((target, toy), (target, toy), (thinker, toy), (thinker, replace(toy, tuning_nodes=11))):
        log_lines: list[str] = []
        SpeculationBench(model, settings, tmp_path, log_line=log_lines.append).measure_acceptance()
        learned_lines.append([line for line in log_lines if "template" in line])
    assert [len(lines) for lines in learned_lines] == [1, 0, 1, 1]
    assert len(json.loads((tmp_path / "stand_rejection_1.json").read_text())["parents"]) == 11


def test_goal_has_no_verdict_where_a_template_cannot_fill_the_node_budget(
    target: BundledTarget, tmp_path: Path
) -> None:
    names = ("stand_coupled", "stand_rejection", "token_recycling")
    settings = replace(TOY, drafter_setups=names, nodes=(4, 100), tuning_nodes=120)
    measured = SpeculationBench(target, settings, tmp_path).measure_parts(speed=False)
    assert len(json.loads((tmp_path / "stand_rejection_1.json").read_text())["parents"]) == 100
    assert [(row["setup"], row["nodes"]) for row in measured["acceptance"]] == [
        ("stand_coupled", 4), ("stand_coupled", 100), ("stand_rejection", 4), ("stand_rejection", 100),
        ("token_recycling", 4),
    ]  # fmt: skip
    verdicts = {goal["description"]: goal["verdict"] for goal in measured["goals"]}
    published = "tokens per forward against Token Recycling with its published rules"
    assert verdicts[f"{published}, 4 nodes"] != "not measured"
    assert verdicts[f"{published}, 100 nodes"] == "not measured"
    tokens = make_tables(measured)[1]
    assert tokens.rows[-1][-1] == "-"


# --- numbers and goals


def make_run(tokens: list[int], seconds: float = 1.0) -> SpeculationRun:
    """A run of two families with two trajectories each and ten passes per trajectory."""
    work = Workload((WorkloadQuestion("a", "0", (1,)), WorkloadQuestion("b", "1", (1,))), 2, 1.0, 99)
    spent = tuple(Usage(tokens=n, forwards=10, drafted=40) for n in tokens)
    return SpeculationRun(work, seconds, spent, tuple((n,) for n in tokens), EngineStats())


def test_run_averages_over_families_not_over_tokens() -> None:
    run = make_run([10, 30, 60, 60])
    assert run.by_family() == {"a": 2.0, "b": 6.0}
    assert run.by_family(without=0) == {"a": 3.0, "b": 6.0}
    assert (run.tokens_per_forward, run.nodes_per_forward, run.tokens_per_s) == (4.0, 4.0, 160.0)
    assert run.count_differing(make_run([10, 30, 61, 60])) == 1


def test_goals_compare_means_and_the_worst_family() -> None:
    runs = {
        "stand_coupled": make_run([30, 30, 60, 60]),
        "stand_rejection": make_run([30, 30, 50, 50]),
        "likely_template": make_run([20, 20, 20, 20]),
        "likely_best_first": make_run([25, 25, 35, 35]),
        "token_recycling": make_run([20, 20, 30, 30]),
    }
    goals = evaluate_goals([AcceptancePoint(name, 1.0, 8, run, None) for name, run in runs.items()], [], [8])
    gain, deterministic, recycling, lookup, worst = goals[:5]
    assert (gain.measured, gain.error, gain.verdict) == (4.5 / 4.0, 0.0, "PASS")
    assert deterministic.measured == 4.5 / 3.0
    assert recycling.verdict == "short by 0.200"
    assert lookup == Goal(lookup.description, 2.0)
    assert (worst.measured, worst.required, worst.verdict) == (1.0, 0.98, "PASS")


def test_standard_errors_are_over_trajectories() -> None:
    """The jackknife of a mean is its standard error."""
    ours, theirs = make_run([30, 50, 30, 50]), make_run([20, 20, 20, 20])
    points = [
        AcceptancePoint("stand_coupled", 1.0, 8, ours, None),
        AcceptancePoint("stand_rejection", 1.0, 8, theirs, None),
    ]
    assert evaluate_goals(points, [], [8])[0].error == pytest.approx(0.5)  # of 1.5 and 2.5


def test_speedup_is_the_median_of_ratios_to_the_adjacent_plain_run() -> None:
    speed_run = SpeedRun("stand", 1.0, 16)
    for mine, plain in ((1.0, 2.0), (2.0, 2.0), (1.0, 9.0)):
        speed_run.runs.append(make_run([10] * 4, mine))
        speed_run.plain.append(make_run([10] * 4, plain))
    assert speed_run.speed == 2.0
    assert speed_run.to_json()["speeds"] == [2.0, 1.0, 9.0]
    assert [goal.measured for goal in evaluate_goals([], [speed_run], [])] == [None, 2.0, None]
