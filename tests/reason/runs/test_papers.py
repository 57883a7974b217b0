"""Published figures beside a run's: which runs have the published settings, and the intervals of their numbers."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from decoding.core import Usage
from reason import ConfigError
from reason.commands.report import write_report
from reason.config.compose import compose_settings
from reason.runs import resume
from reason.runs.papers.estimates import (
    bootstrap_ratio,
    estimate_accuracy,
    estimate_between,
    estimate_tokens_per_forward,
)
from reason.runs.papers.judgement import FREE, RunSettings, judge_run, paper_lines
from reason.runs.papers.spec import BETWEEN_RUNS, Paper, read_paper
from reason.runs.result import ProblemResult
from reason.settings.validate import validate_settings
from search.kv import KVFootprint
from tests.support.paths import CONF
from tests.support.run_folders import make_row
from tests.support.searches import option_names

PAPERS = [name for name in option_names("experiment") if name.startswith("paper_")]


def sweep_points(name: str) -> list[list[str]]:
    """The settings of each run of an experiment's sweep."""
    params = OmegaConf.load(CONF / "experiment" / f"{name}.yaml").hydra.sweeper.params
    axes = [[f"{key}={value}" for value in str(values).split(",")] for key, values in params.items()]
    return [list(point) for point in itertools.product(*axes)]


def composed(name: str, *more: str) -> RunSettings:
    return RunSettings(*compose_settings([f"+experiment={name}", *more]))


def paper_of(run: RunSettings) -> Paper:
    paper = read_paper(run.config["paper"])
    assert paper is not None
    return paper


def rows(count: int, *, right: int = 0, tokens: int = 100, accepted: int = 0, kv: float = 90.0) -> list[ProblemResult]:
    return [
        ProblemResult.from_json(
            make_row(i, i < right, tokens)
            | {
                "usage": asdict(Usage(tokens=tokens, accepted=accepted, seconds=2.0)),
                "kv": asdict(KVFootprint(steps=2, frontier_tokens=kv)),
            }
        )
        for i in range(count)
    ]


def judge(run: RunSettings, results: list[ProblemResult] | None = None, **more: Any) -> dict[str, Any]:
    paper = paper_of(run)
    return judge_run(paper, run, rows(paper.problems[run.choices["task"]]) if results is None else results, **more)


@pytest.mark.parametrize("name", PAPERS)
def test_experiment_as_it_stands_has_the_published_settings_over_the_whole_data_set(name: str) -> None:
    for point in sweep_points(name):
        run = composed(name, *point)
        paper = paper_of(run)
        assert judge(run)["differences"] == ([paper.never] if paper.never else [])
        assert judge(run)["figures"], f"{name} has no figure at {point}"
        missing = judge(run, rows(2))
        assert not missing["is_reproduction"]
        assert f"2 of {paper.problems[run.choices['task']]} problems" in missing["differences"]


@pytest.mark.parametrize("name", PAPERS)
def test_experiment_needs_nothing_but_its_models(name: str) -> None:
    """All of its other settings are valid, at every point of its sweep."""
    for point in sweep_points(name):
        models = ["model.path=bundled:target", *(["small.path=bundled:draft"] if "arbitrage" in name else [])]
        config, choices = compose_settings([f"+experiment={name}", *point, *models])
        with_scorer = {"scorer": compose_settings(["scorer=prm"])[0]["scorer"]} if choices["scorer"] != "none" else {}
        with pytest.raises(ConfigError, match="paper: figures"):
            validate_settings(config | {"paper": config["paper"] | {"figures": []}}, choices)
        validate_settings(config | with_scorer, choices)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_other_setting_is_named(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["paper_ets", "paper_stand", "paper_arbitrage"]))
    run = composed(name)
    free = {*FREE, *paper_of(run).free}
    keys = [
        key
        for key in resume.flatten_settings(run.config)
        if not key.endswith("_target_") and not any(key == at or key.startswith(f"{at}.") for at in free)
    ]
    key = data.draw(st.sampled_from(keys))
    config = copy.deepcopy(dict(run.config))
    *above, last = key.split(".")
    node = config
    for part in above:
        node = node[part]
    node[last] = "something else"
    differences = judge(RunSettings(config, run.choices))["differences"]
    assert any(text.startswith(f"{key} is something else and not ") for text in differences)


def test_group_without_an_option_is_the_same_in_a_saved_run() -> None:
    run = composed("paper_ets")
    assert judge(RunSettings(run.config, {**run.choices, "effort": None}))["is_reproduction"]  # type: ignore[dict-item]


def test_engine_seed_and_device_are_free() -> None:
    run = composed(
        "paper_ets", "seed=3", "scorer.device=cpu", "concurrency=1", "speculation=off", "engine.dtype=float32"
    )
    assert judge(run)["is_reproduction"]
    other = composed("paper_ets", "model=qwen3-8b", "scorer=rlhflow_prm")
    assert "model is qwen3-8b and not llama-3.2-1b" in judge(other)["differences"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"error": "ValueError: x"}, "1 problems failed"),
        ({"stopped": "budget"}, "1 problems out of budget"),
        ({"gold": None, "grade": "ungraded"}, "1 problems without a gold answer"),
    ],
)
def test_problems_that_were_not_solved_to_the_end_are_named(change: dict[str, Any], text: str) -> None:
    broken = ProblemResult.from_json(make_row(499, False, 100) | change)
    assert judge(composed("paper_ets"), [*rows(499), broken])["differences"] == [text]


def test_interrupted_run_is_no_reproduction() -> None:
    assert judge(composed("paper_ets"), is_whole=False)["differences"] == ["the run was interrupted"]


def test_wider_ets_needs_its_own_coverage() -> None:
    assert judge(composed("paper_ets", "search.n=64", "search.coverage=1.4"))["is_reproduction"]
    wrong = judge(composed("paper_ets", "search.n=64"))
    assert wrong["differences"] == ["the paper has no figure for these settings together"]
    assert judge(composed("paper_ets", "search=rebase", "search.n=64"))["is_reproduction"]


def test_settings_are_compared_also_where_the_paper_has_no_figure() -> None:
    run = composed("paper_ets", "search=rebase", "search.n=8", "search.depth=3")
    assert judge(run)["differences"] == ["search.n is 8 and not 16 or 64 or 256", "search.depth is 3 and not 25"]


def test_accuracy_of_few_problems_has_a_wide_interval() -> None:
    estimate = estimate_accuracy(rows(2, right=2))
    assert estimate is not None
    assert estimate.value == 1.0
    assert estimate.low == pytest.approx(2 / (2 + 1.959964**2), abs=1e-4)  # Wilson 1927, where all are right
    assert estimate_accuracy([]) is None


def test_tokens_per_forward_weighs_problems_by_their_passes() -> None:
    mixed = [*rows(1, tokens=100, accepted=50), *rows(1, tokens=300, accepted=200)]
    estimate = estimate_tokens_per_forward(mixed)
    assert estimate is not None
    assert estimate.value == pytest.approx(400 / 150)
    assert estimate_tokens_per_forward(rows(1, tokens=0)) is None


@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=2, max_size=20))
def test_ratio_lies_in_its_interval_and_that_between_the_extremes(pairs: list[tuple[float, float]]) -> None:
    above, below = np.array(pairs).T
    estimate = bootstrap_ratio(above, below)
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9
    assert (above / below).min() - 1e-9 <= estimate.low <= estimate.high <= (above / below).max() + 1e-9


def test_figures_between_runs_are_over_common_problems() -> None:
    ours, others = rows(4, right=3, kv=50.0), rows(8, right=1, tokens=50, kv=100.0)
    values = {metric: estimate_between(metric, ours, others) for metric in BETWEEN_RUNS}
    assert {name: estimate.value for name, estimate in values.items() if estimate} == {
        "kv_ratio": 2.0,
        "speed_ratio": 2.0,
        "accuracy_gain": 0.5,
    }
    assert estimate_between("kv_ratio", ours, []) is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"title": ""}, "paper: title must be text"),
        ({"problems": 500}, "paper: problems must map tasks to numbers"),
        ({"problems": {"math500": 0}}, r"paper: problems\.math500 must be"),
        ({"journal": "x"}, "paper: journal is not one of arxiv"),
        ({"differs": "x"}, "paper: differs must be a list of texts"),
        ({"figures": [{"metric": "speed", "value": 1, "where": "x"}]}, r"paper: figures\[0\]: metric must be one of"),
        ({"figures": [{"metric": "accuracy", "value": None, "where": "x"}]}, r"figures\[0\]: value must be a number"),
        ({"figures": [{"metric": "kv_ratio", "value": 1, "where": "x"}]}, r"figures\[0\]: over is for the metrics"),
        ({"figures": [{"metric": "accuracy", "value": 1}]}, r"paper: figures\[0\] must have where"),
    ],
)
def test_wrong_paper_is_refused_before_anything_loads(change: dict[str, Any], error: str) -> None:
    config, choices = compose_settings(["+experiment=paper_rebase", "model.path=bundled:target"])
    with pytest.raises(ConfigError, match=error):
        validate_settings(config | {"paper": config["paper"] | change}, choices)


def save_run(home: Path, run: RunSettings, results: list[ProblemResult]) -> None:
    home.mkdir(parents=True)
    resume.save_settings(home, config=run.config, choices=run.choices, about={"task": "math500"})
    (home / "results.jsonl").write_text("".join(f"{json.dumps(row.to_json())}\n" for row in results))
    (home / "summary.json").write_text(json.dumps({"stopped": "done"}))


def test_report_divides_the_kv_of_rebase_by_that_of_ets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_run(tmp_path / "0", composed("paper_ets", "search=rebase"), rows(500, kv=150.0))
    save_run(tmp_path / "1", composed("paper_ets"), rows(500, kv=100.0))
    write_report([tmp_path], tmp_path / "report.html")
    line = "kv_ratio of search=ets_published: published 1.8 (abstract, without a width, arXiv 2502.13575); here, over"
    ours = "search=rebase, 1.500, 95 % interval 1.500 to 1.500; the published settings"
    out = capsys.readouterr().out
    assert f"{line} {ours}" in " ".join(out.split())
    assert "kv_ratio" in (tmp_path / "report.md").read_text()

    save_run(tmp_path / "other" / "1", composed("paper_ets"), rows(2))
    write_report([tmp_path / "other"], tmp_path / "report.html")
    assert "here it takes the same run with search=rebase too" in capsys.readouterr().out
    save_run(tmp_path / "other" / "0", composed("paper_ets", "search=rebase"), rows(2))
    write_report([tmp_path / "other"], tmp_path / "report.html")
    assert "not a reproduction: 2 of 500 problems" in capsys.readouterr().out


def test_lines_say_the_verdict_and_name_the_first_differences() -> None:
    run = composed("paper_rebase", "search.n=4", "search.depth=3", "model.prompt.system=null", "budget.tokens=9")
    lines = dict(paper_lines(judge(run, rows(2, right=1))))
    assert lines["reproduction"].startswith("not a reproduction: search.n is 4 and not 256; ")
    assert "budget.tokens is 9 and not null" in lines["reproduction"]
    whole = dict(paper_lines(judge(composed("paper_rebase"), rows(500, right=337))))
    assert whole["reproduction"] == "the published settings"
    assert "published 0.674" in whole["accuracy"]
    assert "here 0.674, 95 % interval 0.632 to 0.714" in whole["accuracy"]
