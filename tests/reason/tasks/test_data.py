"""Every data set is read in each published spelling; errors name the file, the line and the remedy."""

import csv
import importlib.util
import io
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from reason.models.hub import is_hub_reachable
from reason.tasks import hub
from reason.tasks.aime import Aime
from reason.tasks.base import Task
from reason.tasks.gpqa import Gpqa
from reason.tasks.gsm8k import Gsm8k
from reason.tasks.math500 import Math500
from reason.tasks.rows import DataUnavailable, InvalidRow, read_rows
from tests.support.paths import DATA

TASKS: list[Any] = [Aime, Math500, Gsm8k, Gpqa]
GPQA = {"Question": "Which is even?", "Correct Answer": "2", "Incorrect Answer 1": "1"} | {
    "Incorrect Answer 2": "3",
    "Incorrect Answer 3": "5",
}


def real(name: str) -> str:
    if not (DATA / name).exists():
        pytest.skip(f"no copy of {name}")
    return str(DATA / name)


def written(folder: Path, *rows: Any, name: str = "rows.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def test_aime_2024_is_read_as_published() -> None:
    task = Aime(path=real("aime24.jsonl"))
    assert len(task) == 30
    assert task[0].id == "aime24/60"
    assert (task[7].answer, str(task.grade(task[7], "25")), str(task.grade(task[7], "025"))) == ("25", "right", "right")
    assert all(p.answer is not None and 0 <= int(p.answer) <= 999 for p in task)
    with pytest.raises(DataUnavailable, match="no AIME problem of 2025, only of 2024"):
        Aime(path=real("aime24.jsonl"), year=2025)


def test_math500_is_read_as_published() -> None:
    task = Math500(path=real("math500.jsonl"))
    assert len(task) == 500
    assert task[0].id == "math500/precalculus/807"
    assert task[0].meta["level"] == 2
    assert str(task.grade(task[0], r"\left(3, \frac\pi2\right)")) == "right"


def test_gsm8k_is_read_as_published() -> None:
    task = Gsm8k(path=real("gsm8k.jsonl"))
    assert len(task) == 1319
    assert task[2].answer == "70000"
    assert all(p.answer is not None and p.answer.lstrip("-").isdigit() for p in task)
    solution = str(task[2].meta["solution"])
    assert "####" not in solution
    assert str(task.grade_text(task[2], f"{solution}\n#### 70,000")) == "right"


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "1+1?", "answer": "002"},
        {"Problem": "1+1?", "Answer": 2, "ID": "2024-II-4"},
        {"question": "1+1?", "answer": 2.0},
        {"problem": "1+1?", "answer": "$2^\\circ$", "url": "wiki/2024_AIME_I_Problems/Problem_1"},
    ],
)
def test_aime_is_read_in_every_spelling(tmp_path: Path, row: dict[str, Any]) -> None:
    task = Aime(path=written(tmp_path, row))
    assert (task[0].question, task[0].answer) == ("1+1?", "2")
    assert task[0].id == f"aime24/{row.get('ID', 0)}"


def test_aime_years_are_separated_by_url(tmp_path: Path) -> None:
    """A file of three years has ninety problems."""
    rows = [
        {"problem": str(y), "answer": y % 100, "url": f"x/{y}_AIME_I_Problems/Problem_1"} for y in (2022, 2023, 2024)
    ]
    task = Aime(path=written(tmp_path, *rows))
    assert [p.question for p in task] == ["2024"]


@pytest.mark.parametrize("row", [{"question": "q", "answer": "work\n#### 1,234"}, {"problem": "q", "answer": 1234}])
def test_gsm8k_is_read_with_and_without_the_worked_solution(tmp_path: Path, row: dict[str, Any]) -> None:
    assert Gsm8k(path=written(tmp_path, row))[0].answer == "1234"


def test_gpqa_choices_keep_their_order_whatever_other_rows_are_read(tmp_path: Path) -> None:
    others = [GPQA | {"Question": f"Which of these is even, {i}?"} for i in range(40)]
    alone, among = (Gpqa(path=written(tmp_path, *rows)) for rows in ([GPQA], [*others, GPQA]))
    assert alone[0].question == among[40].question
    assert alone[0].answer == among[40].answer
    assert {p.answer for p in among} == set("ABCD")
    for problem in among:
        assert f"({problem.answer}) 2" in problem.question
        assert str(among.grade_text(problem, f"The answer is ({problem.answer})")) == "right"


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"question": "q", "choices": ["x", "y"], "answer": "B"}, "B"),
        ({"question": "q", "choices": ["x", "y"], "answer": 1}, "B"),
        ({"question": "q", "options": ["x", "y"], "answer": "y"}, "B"),
        ({"question": "q (A) x (B) y", "answer": "(B)"}, "B"),
    ],
)
def test_gpqa_is_read_in_every_copy(tmp_path: Path, row: dict[str, Any], gold: str) -> None:
    assert Gpqa(path=written(tmp_path, row))[0].answer == gold


@pytest.mark.parametrize("choices", ["x; y", {"A": "x", "B": "y"}, [str(i) for i in range(11)], ["x"]])
def test_gpqa_names_the_row_whose_choices_are_no_list_of_choices(tmp_path: Path, choices: object) -> None:
    path = written(tmp_path, {"question": "q", "choices": choices, "answer": "A"})
    with pytest.raises(InvalidRow, match=r"rows\.jsonl, line 1: field 'choices' must be a list of 2 to 10 choices"):
        Gpqa(path=path)


def test_gpqa_is_read_from_the_published_csv(tmp_path: Path) -> None:
    path = tmp_path / "gpqa_diamond.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, GPQA)
        writer.writeheader()
        writer.writerow(GPQA | {"Question": 'Which,\n"quoted", is even?'})
    assert Gpqa(path=str(path))[0].question.startswith('Which,\n"quoted", is even?\n\n(A)')


def test_every_file_format_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": "2"}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.csv").write_text("problem,answer\na,1\nb,2\n")
    paths = [written(tmp_path, *rows), str(tmp_path / "rows.json"), str(tmp_path / "rows.csv")]
    if importlib.util.find_spec("pyarrow"):
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
        paths.append(str(tmp_path / "rows.parquet"))
    for path in paths:
        assert [row.fields for row in read_rows(path)] == rows, path


@pytest.mark.parametrize("task", TASKS)
def test_missing_data_file_is_named(task: Any) -> None:
    with pytest.raises(DataUnavailable, match=r"no file 'nowhere\.jsonl'"):
        task(path="nowhere.jsonl")


@pytest.mark.parametrize("task", TASKS)
def test_missing_field_is_named_with_file_line_and_existing_fields(tmp_path: Path, task: Any) -> None:
    path = written(tmp_path, {"prompt": "1+1?", "gold": "2"})
    with pytest.raises(InvalidRow) as error:
        task(path=path)
    assert str(error.value).startswith(f"{path}, line 1: no field '")
    assert str(error.value).endswith("its fields are prompt, gold")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"problem": "a", "answer": "1"}\n\n{"problem": "b", "answer"\n', "line 3: not JSON"),
        ("[1]\n", "line 1: expected an object with fields, got list"),
        ('{"problem": "a", "answer": " "}\n', "line 1: no text in field 'answer'"),
        ('{"problem": "a", "answer": null}\n', "line 1: no field 'answer'"),
        ('{"problem": "a", "answer": ["1"]}\n', "line 1: no text in field 'answer'"),
        ("\n", "holds no rows"),
        ("", "holds no rows"),
    ],
)
def test_invalid_line_of_a_data_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        Math500(path=str(path))


def test_invalid_knobs_and_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task\.year must be one of 2024, 2025; got 2023"):
        Aime(year=2023)
    with pytest.raises(ValueError, match=r"task\.limit"):
        Aime(limit=0)
    with pytest.raises(InvalidRow, match="integer from 0 to 999"):
        Aime(path=written(tmp_path, {"problem": "a", "answer": r"\pi"}))
    with pytest.raises(InvalidRow, match="must name one of the choices, got 'C'"):
        Gpqa(path=written(tmp_path, {"question": "q", "choices": ["x", "y"], "answer": "C"}))
    with pytest.raises(InvalidRow, match="nothing follows ####"):
        Gsm8k(path=written(tmp_path, {"question": "q", "answer": "so ####"}))
    with pytest.raises(DataUnavailable, match=r"must end in \.jsonl"):
        Math500(path=written(tmp_path, {}, name="rows.txt"))
    with pytest.raises(ValueError, match="occurs more than once"):
        Math500(path=written(tmp_path, *[{"problem": "a", "answer": "1", "unique_id": "x"}] * 2))


@pytest.mark.parametrize("task", TASKS)
def test_missing_network_and_file_are_reported_with_instructions_at_once(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    started = time.perf_counter()
    with pytest.raises(DataUnavailable) as error:
        task()
    assert time.perf_counter() - started < 20  # retries would take minutes
    message = str(error.value)
    assert message.startswith("cannot reach the hub for ")
    assert "pass task.path=FILE.jsonl (fields: " in message
    assert "\n" not in message


def test_unresponsive_network_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> io.BytesIO:
        time.sleep(40)
        return io.BytesIO()

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("urllib.request.urlopen", late)
    started = time.perf_counter()
    assert not is_hub_reachable()
    assert time.perf_counter() - started < 30


class FakeHub(types.ModuleType):
    """Stands for the package `datasets`."""

    def __init__(self, rows: list[dict[str, Any]] | Exception) -> None:
        super().__init__("datasets")
        self.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
        self.rows = rows
        self.downloads: list[tuple[Any, ...]] = []

    def disable_progress_bars(self) -> None: ...

    def load_dataset(self, repo: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        self.downloads.append((repo, config, split))
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows


@pytest.mark.parametrize(
    ("task", "row", "download"),
    [
        (Aime, {"problem": "q", "answer": "1"}, ("HuggingFaceH4/aime_2024", None, "train")),
        (Math500, {"problem": "q", "answer": "1"}, ("HuggingFaceH4/MATH-500", None, "test")),
        (Gsm8k, {"question": "q", "answer": "#### 1"}, ("openai/gsm8k", "main", "test")),
        (Gpqa, GPQA, ("Idavidrein/gpqa", "gpqa_diamond", "train")),
    ],
)
def test_hub_download_requests_the_right_split(
    task: Any, row: Any, download: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeHub([row])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    monkeypatch.setattr(hub, "is_hub_reachable", lambda: True)
    loaded: Task = task()
    assert len(loaded) == 1
    assert fake.downloads == [download]


def test_hub_refusal_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", FakeHub(RuntimeError("is gated.\nlog in")))
    monkeypatch.setattr(hub, "is_hub_reachable", lambda: True)
    with pytest.raises(
        DataUnavailable, match=r"cannot load Idavidrein/gpqa from the hub \(RuntimeError: is gated\) .*hf auth"
    ):
        Gpqa()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(hub, "is_hub_reachable", lambda: True)
    with pytest.raises(DataUnavailable, match=r"'datasets' is needed to load openai/gsm8k \(pip install"):
        Gsm8k()


def test_cached_data_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    assert not hub.is_cached("HuggingFaceH4/MATH-500")
    (tmp_path / "HuggingFaceH4___math-500").mkdir()
    assert hub.is_cached("HuggingFaceH4/MATH-500")


@pytest.mark.parametrize("name", ["aime", "math500", "gsm8k", "gpqa"])
def test_task_yaml_has_the_knobs_of_its_class(name: str, tmp_path: Path) -> None:
    """`+task=NAME` composes at the key `task`, and every knob in it is one of the constructor's."""
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate

    rows = [GPQA] if name == "gpqa" else [{"question": "q", "problem": "q", "answer": "1"}]
    with initialize_config_module("conf", version_base="1.3"):
        config = compose(overrides=[f"+task={name}", f"task.path={written(tmp_path, *rows)}"])
    task = instantiate(config.task, _convert_="all")
    assert len(task) == 1
