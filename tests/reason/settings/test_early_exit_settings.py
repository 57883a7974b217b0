"""`early_exit=...` and `model.thinking.waits`: what composes, what is refused, and what a solver makes of it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import reason
from decoding.core import SamplingParams
from reason.config.compose import compose_settings, list_options
from reason.config.errors import ConfigError
from reason.problem import Problem
from reason.runs.present import format_heading, print_summary
from reason.runs.result import ProblemResult
from reason.runs.summary import summarise_results
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings
from reason.thinking import ThinkingFormat
from search.early_exit.converged import ConvergedAnswers
from search.step_rules.markers import MARKERS
from search.strategies.best_of_n import BestOfN
from tests.support.scripted_thinker import CLOSING, FORCED_END, PROBE, RandomThinker
from tests.support.toy_search import ROOT
from tests.support.toy_solver import toy_solver

THINKING = "thinking@model.thinking=r1"
RULES = [name for name in list_options("early_exit") if name != "none"]


def spec_of(*overrides: str) -> SolveSpec:
    return validate_settings(*compose_settings(overrides))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_composes_for_a_model_that_thinks(name: str) -> None:
    spec = spec_of(THINKING, f"early_exit={name}", "early_exit.every=64")
    assert spec.early_exit is not None
    assert (spec.early_exit.every, spec.early_exit.probe) == (64, "\n\nThe answer is \\boxed{")
    assert spec.names["early_exit"] == name


def test_probe_is_the_models_own_unless_it_is_set() -> None:
    probe_of_the_model = "model.thinking.probe='So: '"
    for setting, probe in (((), "So: "), (("early_exit.probe='Now: '",), "Now: ")):
        rule = spec_of(THINKING, probe_of_the_model, "early_exit=converged", *setting).early_exit
        assert rule is not None
        assert rule.probe == probe


def test_words_and_texts_of_a_rule_are_set_on_the_command_line() -> None:
    rule = spec_of(THINKING, "early_exit=converged", "early_exit.doubts=[wait,hold on,no]", "early_exit.at=turns")
    assert isinstance(rule.early_exit, ConvergedAnswers)
    assert list(rule.early_exit.doubts) == ["wait", "hold on", "no"]
    assert list(rule.early_exit.markers) == list(MARKERS)


def test_no_thought_ends_early_unless_it_is_set() -> None:
    spec = spec_of(THINKING)
    assert spec.early_exit is None
    assert "early_exit" not in spec.names
    assert spec.thinking is not None
    assert (spec.thinking.waits, spec.thinking.wait_text) == (0, "Wait")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["early_exit=converged"], "early_exit=converged ends thoughts, and this model writes none"),
        (
            [THINKING, "early_exit=convergd"],
            "there is no early_exit=convergd.*certain, converged, none, redundant",
        ),
        ([THINKING, "early_exit=converged", "early_exit.every=0"], "early_exit.every must be an int >= 1, got 0"),
        (
            [THINKING, "early_exit=redundant", "early_exit.hint='Enough.</think>'"],
            "early_exit.hint must leave it to the model to write the closing tag '</think>'",
        ),
        ([THINKING, "early_exit=certain", "early_exit.at=markers"], "early_exit.at must be one of every, turns; got"),
        (
            [THINKING, "early_exit=converged", "model.thinking.probe=''"],
            "model.thinking.probe must be a text that asks",
        ),
        ([THINKING, "early_exit=converged", "early_exit.probe=''"], "early_exit.probe must be a text that asks"),
        ([THINKING, "early_exit=certain", "early_exit.threshold=2"], "early_exit.threshold must be in"),
        (
            [THINKING, "early_exit=redundant", "router=random", "scorer=none", "search=self_consistency"],
            "early_exit=redundant asks one model for its answer, and router=random writes with two",
        ),
        (
            [THINKING, "early_exit=converged", "engine=openai", "engine.model=m", "search=self_consistency"],
            "early_exit=converged continues a thought, and this engine begins every answer anew.* engine.prefill=true",
        ),
        (
            [THINKING, "early_exit=certain", "engine=openai", "engine.prefill=true", "search=self_consistency"],
            "early_exit=certain reads log-probabilities; set engine.logprobs=true",
        ),
        (
            [THINKING, "model.thinking.waits=2", "engine=openai", "search=self_consistency"],
            "model.thinking.waits puts in a text, and this engine begins every answer anew.* or leave waits 0",
        ),
        ([THINKING, "model.thinking.waits=-1"], "model.thinking.waits must be an int >= 0, got -1"),
        ([THINKING, "model.thinking.wait_text=' '"], "model.thinking.wait_text must be a text without the closing tag"),
        ([THINKING, "model.thinking.wait_text='a </think>'"], "model.thinking.wait_text must be a text without"),
    ],
)
def test_wrong_setting_is_refused_by_name_before_a_model_loads(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(*overrides)


def test_probe_longer_than_the_window_is_refused_before_a_model_loads() -> None:
    probe = f"early_exit.probe='{'so ' * 5000}'"
    with pytest.raises(
        ConfigError, match=r"early_exit.probe has \d+ tokens, and with early_exit.probe_tokens=32 .* wi"
    ):
        reason.load(THINKING, "early_exit=converged", probe)


FORM = ThinkingFormat(
    opening="<think>", closing=CLOSING, forced_end=FORCED_END, answer_tokens=60, opened_by_prompt=True
)


def solve(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "engine": RandomThinker(mean_length=10**9),
        "thinking": FORM,
        "strategy": BestOfN(n=3, sampling=SamplingParams(max_tokens=400)),
    }
    with toy_solver(**(arguments | changes)) as solver:
        return solver.solve(Problem.from_question("toy?", prompt=ROOT))


def test_solver_ends_thoughts_early_and_rows_say_what_it_took() -> None:
    late, early = (solve(early_exit=rule) for rule in (None, ConvergedAnswers(every=20, agree=2)))
    assert (early.answer, len(early.thought)) == ("7", 40 + len("\nEnough."))
    assert len(late.thought) > 200
    assert (early.usage.probes, early.usage.probe_tokens) == (3 * 2, 3 * 2 * len("7}"))
    row = ProblemResult.from_solution(early, lambda *_: ProblemResult(id="p").grade)
    assert row.to_json()["usage"]["probes"] == 6
    assert ProblemResult.from_json({"id": "p", "usage": {"tokens": 3}}).usage.probes == 0


def test_solver_puts_the_hint_in() -> None:
    rule = ConvergedAnswers(every=20, agree=2, hint="\nI know.", hint_tokens=30)
    early = solve(early_exit=rule)
    before, hint, behind = early.thought.partition("\nI know.")
    assert (early.answer, len(before), hint, len(behind)) == ("7", 40, "\nI know.", 30 + len("\nEnough."))


def test_probes_are_worked_with_as_the_answer_is() -> None:
    """The canonical form of an answer is compared, not its spelling."""
    engine = RandomThinker(lambda position: ("07.0" if position % 40 else "7", -0.5), mean_length=10**9)
    early = solve(engine=engine, early_exit=ConvergedAnswers(every=20, agree=2))
    assert len(early.thought) == 40 + len("\nEnough.")
    assert any(bytes(request.prefix).decode().endswith(PROBE) for request in engine.requests)


def test_summary_counts_the_probes() -> None:
    usage = {"tokens": 500, "probes": 12, "probe_tokens": 34}
    results = [ProblemResult.from_json({"id": "p", "usage": usage})]
    summary = summarise_results(results) | {
        "engine_totals": None,
        "seconds": 1.0,
        "total": 1,
        "resumed": 0,
        "folder": "f",
        "page": "p",
    }
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200))
    line = next(line for line in out.getvalue().splitlines() if line.startswith("probes"))
    assert line.split() == ["probes", "12", "of", "running", "thoughts;", "34", "of", "the", "tokens"]


def test_heading_names_the_rule() -> None:
    names = {"model": "m", "search": "s", "scorer": "p", "engine": "e", "speculation": "off", "task": "sums"}
    assert ", early exit certain; data" in format_heading(names | {"early_exit": "certain"}, 1)
