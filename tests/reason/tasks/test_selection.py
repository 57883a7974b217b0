"""Selection of the task: a question, a task, its stand-in, or the model's default."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason import ConfigError
from reason.config.compose import compose_settings
from reason.settings.validate import validate_settings
from reason.tasks.base import Task
from reason.tasks.selection import select_task


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def select(*overrides: str) -> tuple[Task, str | None]:
    config, choices = compose_settings(overrides)
    return select_task(config, choices, validate_settings(config, choices).scorer)


def test_question_is_a_task_of_one_problem(tiny: list[str]) -> None:
    task, stands_in_for = select(*tiny, "question='What is 1+1?'")
    assert ([p.question for p in task], stands_in_for) == (["What is 1+1?"], None)


def test_question_and_task_together_are_refused(tiny: list[str]) -> None:
    with pytest.raises(ConfigError, match="question and task are both set"):
        select(*tiny, "question=why", "+task=aime")


def test_default_task_exists_for_the_bundled_model_only(tiny: list[str]) -> None:
    task, stands_in_for = select(*tiny)
    assert (task.name.startswith("synthetic"), stands_in_for) == (True, None)
    with pytest.raises(ConfigError, match=r"nothing to solve: set question=\.\.\. or \+task=\.\.\.; tasks are: aime"):
        select(*tiny[:1], "model=hf")


def test_bundled_model_gets_the_stand_in_with_its_name(tiny: list[str]) -> None:
    task, stands_in_for = select(*tiny, "+task=aime", "task.limit=3")
    assert (task.name.startswith("synthetic"), stands_in_for, len(task)) == (True, "aime", 3)


def test_user_file_is_never_replaced_by_the_stand_in(tiny: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"problem": "What is 1+1?", "answer": "2"}\n')
    task, stands_in_for = select(*tiny, "+task=aime", f"task.path={file}")
    assert ([p.answer for p in task], stands_in_for) == (["2"], None)


def test_missing_file_is_named(tiny: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"task\.path.*no/such"):
        select(*tiny, "+task=aime", "task.path=/no/such.jsonl")


def test_real_model_does_not_get_the_stand_in(tiny: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"task\.path=FILE\.jsonl"):
        select(*tiny[:1], "model=hf", "+task=aime")
