"""Chooses the task of a run: a question, a chosen data set, its stand-in, or the default of the model."""

from __future__ import annotations

from collections.abc import Mapping

from reason.config.compose import Settings, as_config_error, instantiate, list_options, load_option
from reason.config.errors import ConfigError
from reason.problem import Problem
from reason.scorers.base import Scorer
from reason.scorers.oracle import OracleScorer
from reason.tasks.base import Task


def select_task(config: Settings, choices: Mapping[str, str], scorer: Scorer) -> tuple[Task, str | None]:
    """Returns the task to solve, and the name of the task that it stands in for, or None. Raises: ConfigError."""
    task, stands_in_for = _choose_task(config, choices, scorer)
    if isinstance(scorer, OracleScorer):
        with as_config_error():
            for problem in task:
                scorer.validate_problem(problem)
    return task, stands_in_for


def _choose_task(config: Settings, choices: Mapping[str, str], scorer: Scorer) -> tuple[Task, str | None]:
    """Returns the first that is set: the question; the chosen task, or the bundled set that the model declares as its
    stand-in (never for a file of the user); the model's default task.
    """
    question, model, node = config["question"], config["model"], config.get("task")
    if question is not None:
        if node is not None:
            raise ConfigError("question and task are both set; give one of them")
        if getattr(scorer, "reads_gold", False):
            raise ConfigError(
                "scorer=oracle scores by the gold answers of a task, and a question has none; choose another scorer"
            )
        with as_config_error("question"):
            return Task("question", [Problem.from_question(str(question))]), None
    if node is None:
        if model["default_task"] is None:
            options = ", ".join(list_options("task"))
            raise ConfigError(f"nothing to solve: set question=... or +task=...; tasks are: {options}")
        return instantiate("task", load_option("task", model["default_task"])), None
    chosen = choices.get("task", "")
    stand_in = model["stand_in"].get(chosen)
    if stand_in is None or node.get("path") is not None:
        return instantiate("task", node), None
    default = load_option("task", stand_in)
    shared = {key: node[key] for key in default if key != "_target_" and node.get(key) is not None}
    return instantiate("task", default | shared), chosen
