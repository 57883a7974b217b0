"""A function of a plugin as a scorer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from reason import ConfigError
from reason.config.compose import compose_settings, instantiate
from reason.config.plugins import load_plugins
from reason.scorers.function import FunctionScorer
from search.tree import Step

MODULE = """
def by_step(question, steps):
    return [len(step) / 10 for step in steps]

def whole(question, steps):
    return 0.25 if question == "why?" else 1

def some(question, steps):
    return None if len(steps) > 1 else [None]

def too_much(question, steps):
    return 1.5

def too_few(question, steps):
    return [0.5]

def no_number(question, steps):
    return [float("nan"), True, "x"][: len(steps)]

no_function = 3
"""
PATHS = [[Step((1,), "a"), Step((2,), "bcd")], [Step((1,), "a")]]


@pytest.fixture(scope="module")
def score(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], object]:
    file = tmp_path_factory.mktemp("plugin") / "rules_of_a_user.py"
    file.write_text(MODULE, encoding="utf-8")
    load_plugins([str(file)])

    def score_with(name: str) -> object:
        scorer = FunctionScorer(function=f"rules_of_a_user:{name}")
        scorer.validate()
        return asyncio.run(scorer.bind("why?", ()).score(PATHS)).scores

    return score_with


def test_function_scores_each_step_or_the_whole_path(score: Callable[[str], object]) -> None:
    assert score("by_step") == [[0.1, 0.3], [0.1]]
    assert score("whole") == [[None, 0.25], [0.25]]
    assert score("some") == [None, [None]]


@pytest.mark.parametrize("name", ["too_much", "too_few", "no_number"])
def test_what_is_no_score_is_refused_with_the_name_of_the_setting(score: Callable[[str], object], name: str) -> None:
    with pytest.raises(ValueError, match=rf"scorer.function=rules_of_a_user:{name} must return a number from 0 to 1"):
        score(name)


def test_missing_function_and_untrusted_modules_are_refused(score: Callable[[str], object], tmp_path: Path) -> None:
    for name in ("no_function", "nothing"):
        with pytest.raises(ValueError, match=f"rules_of_a_user has no function {name}"):
            score(name)
    with pytest.raises(ValueError, match=r"scorer\.function must be set"):
        FunctionScorer(function=None).validate()
    for name in ("os:getcwd", "rules_of_a_userx:whole"):
        with pytest.raises(ValueError, match=r"function must be of a module that plugins lists"):
            FunctionScorer(function=name)
    for name in ("score", "rules:", ":score", "a:b c"):
        with pytest.raises(ValueError, match="function must be MODULE:NAME"):
            FunctionScorer(function=name)


def test_function_is_named_on_the_command_line(score: Callable[[str], object]) -> None:
    settings, _ = compose_settings(["scorer=function", "scorer.function=rules_of_a_user:whole"])
    assert instantiate("scorer", settings["scorer"]).validate() is None
    settings, _ = compose_settings(["scorer=function", "scorer.function=os:getcwd"])
    with pytest.raises(ConfigError, match="plugins lists"):
        instantiate("scorer", settings["scorer"])
