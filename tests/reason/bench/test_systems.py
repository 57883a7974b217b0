"""The rows of docs/systems.md run as they say, and the page says what was measured."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reason.bench.replay import EncodedProblem
from reason.bench.systems import measure
from reason.bench.systems.figures import SystemFigures
from reason.bench.systems.page import format_page
from reason.bench.systems.rows import SystemRow, load_rows
from reason.commands.bench import systems
from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.settings.validate import validate_settings

ROWS = load_rows()
SEARCH_FIGURES: dict[str, object] = {"search": {
    "accuracy": 0.5, "tokens": 7.0, "baseline_accuracy": 0.25, "baseline_tokens": 9.0, "problems": 4,
}}  # fmt: skip
PAGE, FIGURES = Path("docs/systems.md"), Path("benchmarks/systems_cpu.json")


def make_row(**changes: object) -> SystemRow:
    fields: dict[str, object] = {
        "name": "Prompt lookup", "paper": "somebody", "slot": "drafter", "status": "whole", "lossless": True,
        "settings": "speculation=prompt_lookup", "bench": "decoding",
    }  # fmt: skip
    return SystemRow(**{**fields, **changes})  # type: ignore[arg-type]


TRAINED_FIRST = {"FETCH"}  # tests/reason/training/test_td_lambda.py


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.settings and row.name not in TRAINED_FIRST], ids=lambda row: row.name
)
def test_settings_of_a_row_are_accepted_and_lossy_where_it_says_so(row: SystemRow) -> None:
    settings = [*shlex.split(row.common), *shlex.split(row.settings)]
    if row.bench == "search":
        chosen, _, _ = measure.SEARCH_WORKLOADS[(*row.workloads, "writer")[0]]
        settings = list(dict.fromkeys([*chosen, *settings]))
    elif row.bench != "none":
        settings = [*measure.WORKLOADS[(*row.workloads, "writer")[0]], *settings]
    elif row.slot == "thinking":
        settings = ["model=thinker", *settings]
    config, choices = compose_settings(settings)
    spec = validate_settings(config, choices)
    # what the page marks as lossy is what heading, rows and server name
    assert (row.lossless is False) == bool(spec.lossy_settings)


def test_names_are_unique() -> None:
    names = [row.name for row in ROWS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slot": "engine"}, "slot must be one of drafter, tree"),
        ({"status": "absent"}, "settings say how to run a system"),
        ({"settings": ""}, "settings say how to run a system"),
        ({"status": "part"}, "differs must say what is missing"),
        ({"name": ""}, "name must not be blank"),
        ({"slot": "search"}, "lossless must be null for slot=search"),
        ({"slot": "thinking", "lossless": False}, "lossless must be null for slot=thinking"),
    ],
)
def test_row_that_says_too_little_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_row(**changes)


def test_file_with_an_unknown_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("name: A\nspeed: 3\n")
    with pytest.raises(ValueError, match=r"wrong\.yaml: must have keys of bench, common"):
        load_rows(tmp_path)


def test_plain_decoding_is_found_equal_to_a_lossless_system() -> None:
    workload = ["+task=synthetic", "search=self_consistency", "search.n=2", "concurrency=1", "scorer=none"]
    figure = measure.compare_decoding(["speculation=stand"], workload, problems=2, pairs=1)
    assert (figure.differing, figure.samples) == (0, 4)
    assert figure.tokens_per_forward > 1
    assert figure.accuracy == figure.plain_accuracy
    assert figure.nodes is not None
    assert 1 < figure.nodes <= measure.EQUAL_NODES
    assert figure.equal_speed is not None
    middle, low, high = figure.equal_speed
    assert 0 < low <= middle <= high


def test_system_with_its_own_controller_has_its_nodes_and_a_router_none(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[str]] = []

    def pretend(settings: Sequence[str]) -> measure.RunCounts:
        runs.append([one for one in settings if not one.startswith(("task.", "limit"))])
        return measure.RunCounts(60, 20, 50, 1.0 + len(runs), 1, 2, ())

    monkeypatch.setattr(measure, "run_settings", pretend)
    equal = ["controller=fixed", f"controller.nodes={measure.EQUAL_NODES}"]
    drafted = measure.compare_decoding(["speculation=stand"], [], problems=2, pairs=2)
    assert runs == [["speculation=off"], ["speculation=stand"], ["speculation=stand", *equal]] * 2
    assert drafted.nodes == 2.5
    assert drafted.speed == pytest.approx(((2 / 3 + 5 / 6) / 2, 2 / 3, 5 / 6))
    assert drafted.equal_speed == pytest.approx(((2 / 4 + 5 / 7) / 2, 2 / 4, 5 / 7))  # beside the same plain runs
    controlled = measure.compare_decoding(["speculation=stand", "controller=chain"], [], problems=2, pairs=1)
    assert (controlled.nodes, controlled.equal_speed) == (2.5, None)
    router = measure.compare_decoding(["router=entropy"], [], problems=2, pairs=1)
    assert (router.nodes, router.equal_speed) == (None, None)
    assert len(runs) == 6 + 2 + 2


FIGURE: dict[str, Any] = {
    "tokens_per_forward": 3.25, "speed": [1.5, 1.25, 1.75], "differing": 1, "samples": 8, "accuracy": 0.5,
    "plain_accuracy": 0.75, "nodes": 12.125, "equal_speed": [0.75, 0.5, 1.0],
}  # fmt: skip
EARLIER = {name: value for name, value in FIGURE.items() if name not in ("nodes", "equal_speed")}


def table_rows(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]


def test_page_has_nodes_and_speed_at_equal_nodes_where_they_were_measured() -> None:
    rows = [make_row(), make_row(name="An earlier one")]
    figures: dict[str, dict[str, Any]] = {
        "Prompt lookup": {"writer": FIGURE, "recordings": 2.5},
        "An earlier one": {"writer": EARLIER},
    }
    header, first, second = table_rows(format_page(rows, figures, "here"))
    assert dict(zip(header, first, strict=True)) == {
        "system": "Prompt lookup",
        "settings": "`speculation=prompt_lookup`",
        "status": "whole",
        "lossless": "yes",
        "tokens per forward": "recorded 2.50, writer 3.25",
        "nodes": "writer 12.1",
        "speed": "writer 1.50 (1.25 to 1.75)",
        "speed at equal nodes": "writer 0.75 (0.50 to 1.00)",
        "differ": "1 of 8",
        "right": "writer 0.50, plain 0.75",
    }
    earlier = dict(zip(header, second, strict=True))
    assert (earlier["nodes"], earlier["speed at equal nodes"]) == ("", "")
    assert earlier["tokens per forward"] == "writer 3.25"


def test_page_has_no_tokens_per_forward_of_a_router_and_no_absent_system_in_a_table() -> None:
    router = make_row(name="R", slot="router", settings="router=entropy", lossless=False)
    absent = make_row(name="A", status="absent", settings="", lossless=None, differs="A model has to be trained.")
    page = format_page([router, absent], {"R": {"writer": FIGURE}}, "here")
    header, only = table_rows(page)
    assert header == ["system", "settings", "status", "lossless", "speed", "differ", "right"]
    assert only[:4] == ["R", "`router=entropy`", "whole", "**no**"]
    assert "**A** (somebody). Absent: A model has to be trained." in page


def test_page_says_why_systems_with_a_draft_model_have_figures_on_the_writer_only() -> None:
    assert "no draft model for the thinker, and none for the recorded texts" in format_page([], {}, "here")
    for row in ROWS:
        if row.bench == "decoding" and "draft_model" in row.settings:
            assert row.workloads == ("writer",), row.name


@pytest.mark.parametrize("name", ["ADED", "Goose", "STAND"])
def test_drafter_without_a_model_is_replayed_over_recorded_texts(name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    text = tuple(b"the cat sat on the mat, and then the dog sat on the cat")
    figure = measure.replay_row(row, [EncodedProblem((1, 2), (text, text))])
    assert figure is not None
    assert figure > 1


def test_drafter_with_a_model_is_not_replayed() -> None:
    (row,) = (row for row in ROWS if row.name == "VocabTrim")
    assert measure.replay_row(row, [EncodedProblem((1,), ((1, 2),))]) is None


def test_figures_are_kept_after_each_system_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def pretend(row: SystemRow, **_: object) -> dict[str, object]:
        measured.append(row.name)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return SEARCH_FIGURES

    monkeypatch.setattr("reason.bench.systems.measure.measure_row", pretend)
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    names = ["CNTP", "ETS"]
    monkeypatch.setattr(sys, "argv", ["systems", "--only", *names, "--figures", str(figures), "--out", str(page)])
    assert systems.run_program() == 130
    assert json.loads(figures.read_text())["figures"].keys() == set(measured[:1])
    assert systems.run_program() == 0
    assert sorted(measured) == sorted([*names, measured[1]])
    assert "0.50 with 7 tokens, best-of-16 0.25 with 9 (4 problems)" in page.read_text()
    assert capsys.readouterr().out == page.read_text() + "\n"


def test_figures_that_are_missing_are_measured_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, str]] = []

    def pretend(row: SystemRow, *, workloads: Sequence[str], **_: object) -> dict[str, object]:
        measured.extend((row.name, workload) for workload in workloads)
        return dict.fromkeys(workloads, FIGURE)

    def measure_systems(*arguments: str) -> tuple[SystemFigures, list[tuple[str, str]], str]:
        measured.clear()
        monkeypatch.setattr(sys, "argv", ["systems", *arguments, "--figures", str(figures), "--out", str(page)])
        assert systems.run_program() == 0
        return SystemFigures.read(figures), list(measured), page.read_text()

    monkeypatch.setattr("reason.bench.systems.measure.measure_row", pretend)
    monkeypatch.setattr("reason.bench.systems.measure.replay_row", lambda row, recordings: 2.5)
    figures, page, texts = tmp_path / "figures.json", tmp_path / "page.md", tmp_path / "texts.jsonl"
    texts.write_text('{"problem": "What is 1+1?", "samples": ["1+1 is 2, so 2."]}\n')
    both = ["--only", "ADED", "STAND"]

    saved, ran, first_page = measure_systems(*both, "--workloads", "writer")
    assert ran == [("ADED", "writer"), ("STAND", "writer")]
    assert saved.sources == {}  # one command made all
    assert first_page.count("reason bench systems --only ADED STAND --workloads writer") == 1

    saved, ran, _ = measure_systems(*both, "--recordings", str(texts))
    assert ran == [("ADED", "thinker"), ("STAND", "thinker")]
    assert [list(by_key) for by_key in saved.figures.values()] == [["recordings", "thinker", "writer"]] * 2

    saved, ran, last_page = measure_systems("--only", "STAND", "--again", "--workloads", "writer")
    assert ran == [("STAND", "writer")]
    assert list(saved.figures["STAND"]) == ["recordings", "thinker", "writer"]
    assert "Of ADED (recordings, thinker), STAND (recordings, thinker): `" in last_page
    assert "Of STAND (writer): `" in last_page
    assert measure_systems("--page")[2] == last_page


@pytest.mark.parametrize(("name", "code"), [("FETCH", 0), ("Prompt lookup", 2)])
def test_system_whose_models_are_not_trained_is_left_as_it_is_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    def refuse(row: SystemRow, **_: object) -> dict[str, object]:
        if row.name == name:
            raise ConfigError("scorer.path=runs/1: there is no such folder")
        return SEARCH_FIGURES

    monkeypatch.setattr("reason.bench.systems.measure.measure_row", refuse)
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    where = ["--figures", str(figures), "--out", str(page)]
    monkeypatch.setattr(sys, "argv", ["systems", "--only", name, "CNTP", *where])
    assert systems.run_program() == code
    errors = capsys.readouterr().err
    assert "runs/1" in errors
    if code == 0:
        assert "reason train stages=[value_models]" in " ".join(errors.split())
        assert json.loads(figures.read_text())["figures"].keys() == {"CNTP"}


def test_unknown_name_is_refused_with_the_valid_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["systems", "--only", "Medusa-9"])
    assert systems.run_program() == 2
    assert "--only must name systems of" in capsys.readouterr().err


def test_committed_page_is_that_of_the_rows_and_figures() -> None:
    saved = SystemFigures.read(FIGURES)
    assert PAGE.read_text(encoding="utf-8") == format_page(ROWS, saved.figures, *saved.describe_sources())
    assert saved.figures.keys() <= {row.name for row in ROWS}
