"""A run is resumed only with its settings, its questions and whole rows; everything else is one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reason.config.compose import compose_settings, instantiate
from reason.config.errors import ConfigError
from reason.problem import Problem
from reason.runs import resume
from reason.runs.result import UNSTABLE_USAGE_FIELDS, ProblemResult
from reason.runs.run import TaskRun, check_saved_rows
from reason.tasks.base import Task
from search.strategy import Strategy
from tests.support.searches import option_names
from tests.support.toy_search import ToyEmbedder, ToyEngine
from tests.support.toy_solver import toy_solver

CONFIG: dict[str, Any] = {
    "search": {"n": 4, "sampling": {"top_p": 0.5}},
    "model": {"path": "m", "prompt": {"raw": "{question}"}},
    "seed": 0,
    "limit": None,
}
ABOUT = {"task": "toy", "search": "best_of_n", "seed": 0, "config": resume.hash_settings(CONFIG)}
PROBLEMS = [Problem(id=f"p{i}", question=f"What is {i}?", answer="1") for i in range(3)]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with its settings and three rows."""
    folder = tmp_path / "run"
    folder.mkdir()
    resume.save_settings(folder, config=CONFIG, choices={"search": "best_of_n", "effort": None}, about=ABOUT)  # type: ignore[dict-item]
    with toy_solver() as solver:
        run = TaskRun(solver, Task("toy", PROBLEMS), folder, run_metadata=ABOUT)
        list(run.solve_missing())
    return folder


def edit_run(folder: Path, **parts: Any) -> None:
    """Changes `run.json`; None deletes a part."""
    file = folder / "run.json"
    run = json.loads(file.read_text()) | parts
    file.write_text(json.dumps({key: value for key, value in run.items() if value is not None}))


def test_settings_and_rows_of_a_run_are_accepted(run_folder: Path) -> None:
    config, choices, about = resume.load_settings(run_folder)
    assert (config, choices["search"], about) == (CONFIG, "best_of_n", ABOUT)
    check_saved_rows(run_folder, PROBLEMS, about)


def test_run_of_the_last_release_is_accepted_and_its_edit_is_noticed(run_folder: Path) -> None:
    edit_run(run_folder, hash=None, hashes=None)  # it saved one hash only, in `about`
    assert resume.load_settings(run_folder).config == CONFIG
    edit_run(run_folder, config=CONFIG | {"seed": 1})
    with pytest.raises(ConfigError, match="changed after the run had begun"):
        resume.load_settings(run_folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"search": {"n": 8, "sampling": {"top_p": 0.5}}}, r"search\.n is now 8\)"),
        ({"search": {"n": 4, "sampling": {}}}, r"search\.sampling\.top_p is now not set\)"),
        ({"seed": 1, "model": {"path": "m"}}, r"model\.prompt\.raw is now not set, seed is now 1\)"),
        ({"seed": "0"}, r"seed is now \"0\"\)"),
        ({"model": None}, r"model is now null, model\.path is now not set, model\.prompt\.raw is now not set\)"),
    ],
)
def test_edited_settings_are_refused_and_named(run_folder: Path, change: dict[str, Any], named: str) -> None:
    edit_run(run_folder, config=CONFIG | change)
    with pytest.raises(ConfigError, match=rf"run\.json was changed after the run had begun \({named}"):
        resume.load_settings(run_folder)


def test_settings_that_cannot_change_a_row_may_be_edited(run_folder: Path) -> None:
    edit_run(run_folder, config=CONFIG | {"limit": 2})
    assert resume.load_settings(run_folder).config["limit"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("nonsense", "Expecting value"),
        ("[]", "it is not an object"),
        ("7", "it is not an object"),
        ("{}", "config must be an object, got null"),
        ('{"config": {}, "choices": [], "about": {}}', r"choices must be an object, got \[\]"),
        ('{"config": {}, "choices": {"search": 4}, "about": {}}', r"choices\.search must be text or null, got 4"),
        ('{"config": {}, "choices": {}, "about": "x"}', 'about must be an object, got "x"'),
        ("[" * 100_000, "nested too deeply"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "Expecting value"),
    ],
)
def test_broken_run_json_is_one_sentence(run_folder: Path, text: str, message: str) -> None:
    (run_folder / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=message) as error:
        resume.load_settings(run_folder)
    assert str(error.value).startswith(f"{run_folder}: cannot read run.json (")
    assert "\n" not in str(error.value)


def test_settings_of_the_wrong_shape_are_one_sentence(run_folder: Path) -> None:
    message = r"run\.json do not fit this release \(it lacks 'prompt'\)"
    with pytest.raises(ConfigError, match=message), resume.settings_of_run(run_folder):
        raise KeyError("prompt")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("nonsense", "Expecting value"),
        ("7", "it is not an object"),
        ('["id", "p1"]', "it is not an object"),
        ('[["id", "p1"]]', "it is not an object"),
        ('{"question": "no id"}', "'id'"),
        ('{"id": ["p1"]}', r"id must be str, got \"\['p1'\]\""),
        ('{"id": "p1", "score": "high"}', "score must be float or null, got 'high'"),
        ('{"id": "p1", "nodes": true}', "nodes must be int, got 'True'"),
        ('{"id": "p1", "grade": "good"}', r"grade\.value must be one of right, wrong"),
        ('{"id": "p1", "votes": {"4": "many"}}', r"votes\['4'\] must be float, got 'many'"),
        ('{"id": "p1", "usage": {"tokens": "many"}}', r"usage\.tokens must be int, got 'many'"),
        ('{"id": "p1", "usage": [1]}', "not a result row"),
        ('{"id": "p1", "kv": {"peak_tokens": null}}', r"kv\.peak_tokens must be int, got 'None'"),
        ('{"id": "p1", "samples": 3}', "not a result row"),
        (
            '{"id": "p1", "samples": [{"node": "0", "answer": null, "grade": "right", "score": 1}]}',
            r"samples\[0\]\.node",
        ),
        ('{"id": "p1", "shape": {}}', "not a result row"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_row_is_refused_with_file_line_and_what_to_do(run_folder: Path, row: str, message: str) -> None:
    file = run_folder / "results.jsonl"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([first, row, *others, ""]))
    with pytest.raises(ValueError, match=message) as error:
        check_saved_rows(run_folder, PROBLEMS, ABOUT)
    assert str(error.value).startswith(f"{file}, line 2: not a result row (")
    assert str(error.value).endswith("delete the line, and its problem is solved again")


def change_row(folder: Path, **fields: Any) -> None:
    """Changes the second row."""
    file = folder / "results.jsonl"
    lines = file.read_text().splitlines()
    row = json.loads(lines[1]) | fields
    lines[1] = json.dumps({key: value for key, value in row.items() if value is not None})
    file.write_text("\n".join([*lines, ""]))


def test_row_of_other_settings_is_refused_and_the_difference_is_named(run_folder: Path) -> None:
    change_row(run_folder, config="0123456789ab", seed=7)
    with pytest.raises(
        ConfigError, match=r"row of problem p1 is not of this run \(seed 7 in the row, 0 in run\.json\)"
    ):
        check_saved_rows(run_folder, PROBLEMS, ABOUT)
    change_row(run_folder, config="0123456789ab", seed=0)
    with pytest.raises(ConfigError, match="a setting that rows do not name"):
        check_saved_rows(run_folder, PROBLEMS, ABOUT)


def test_row_with_only_an_id_is_refused(run_folder: Path) -> None:
    with (run_folder / "results.jsonl").open("a") as file:
        file.write('{"id": "p1"}\n')
    with pytest.raises(ConfigError, match="does not say with which settings it was made"):
        check_saved_rows(run_folder, PROBLEMS, ABOUT)


@pytest.mark.parametrize(("field", "name"), [("question", "question"), ("gold", "gold answer")])
def test_row_of_other_data_is_refused(run_folder: Path, field: str, name: str) -> None:
    change_row(run_folder, **{field: "another"})
    with pytest.raises(ValueError, match=f"the {name} of problem p1 is not that of its row; the data changed"):
        check_saved_rows(run_folder, PROBLEMS, ABOUT)


def test_last_of_two_rows_of_a_problem_counts(run_folder: Path) -> None:
    file = run_folder / "results.jsonl"
    file.write_text(file.read_text() + file.read_text())
    check_saved_rows(run_folder, PROBLEMS, ABOUT)
    with toy_solver() as solver:
        run = TaskRun(solver, Task("toy", PROBLEMS), run_folder, run_metadata=ABOUT)
        assert (run.num_resumed, list(run.solve_missing())) == (3, [])
        assert len(run.finish_run()) == len(file.read_text().splitlines()) == 3


def test_second_run_in_a_folder_is_refused(run_folder: Path) -> None:
    with pytest.raises(ConfigError, match="holds a run already"):
        resume.save_settings(run_folder, config=CONFIG, choices={}, about=ABOUT)


def solve_task(folder: Path, strategy: Strategy, *, stop_after: int | None = None) -> list[ProblemResult]:
    """Runs a search on five problems, several at once, or stops it as a kill does: in the middle of a row."""
    problems = [Problem(id=f"p{i}", question=f"What is {i}?", answer="1") for i in range(5)]
    engine = ToyEngine(hesitates=True)
    with toy_solver(strategy, engine=engine, embedder=ToyEmbedder(), concurrency=2) as solver:
        run = TaskRun(solver, Task("toy", problems), folder, run_metadata=ABOUT)
        for number, _ in enumerate(run.solve_missing(), 1):
            if number == stop_after:
                with run.file.path.open("a") as file:
                    file.write('{"id": "p4", "half')
                return []
        return run.finish_run()


def read_trees(folder: Path) -> dict[str, Any]:
    trees = {file.name: json.loads(file.read_text()) for file in (folder / "trees").iterdir()}
    return {name: (tree["nodes"], tree["best"], tree["candidates"]) for name, tree in trees.items()}


@pytest.mark.parametrize("name", option_names("search"))
def test_every_search_resumes_a_killed_run_to_the_same_rows(name: str, tmp_path: Path) -> None:
    knobs = ["search.trial_tokens=64"] if name == "cntp" else []  # the toy writes another text behind every part
    settings, _ = compose_settings([f"search={name}", *knobs, "model.path=somewhere"])
    strategy = instantiate("search", settings["search"])
    unbroken = solve_task(tmp_path / "unbroken", strategy)
    solve_task(tmp_path / "killed", strategy, stop_after=2)
    resumed = solve_task(tmp_path / "killed", strategy)
    assert all(row.error is None and row.answer is not None for row in resumed)
    untimed = dict.fromkeys(UNSTABLE_USAGE_FIELDS, 0)
    assert [replace(row, usage=replace(row.usage, **untimed)) for row in resumed] == [
        replace(row, usage=replace(row.usage, **untimed)) for row in unbroken
    ]
    assert read_trees(tmp_path / "killed") == read_trees(tmp_path / "unbroken")
