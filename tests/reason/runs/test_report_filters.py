"""Reports on some of the runs below a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from reason.commands.report import parse_arguments, write_report
from reason.runs.gather import find_runs
from tests.support.run_folders import make_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for n in (4, 8):
        for search in ("ets", "rebase"):
            make_run(tmp_path / f"{search}-{n}", n, [True, False], search=search)
    return tmp_path


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ({}, ["ets-4", "ets-8", "rebase-4", "rebase-8"]),
        ({"search": "ets"}, ["ets-4", "ets-8"]),
        ({"search.n": "8"}, ["ets-8", "rebase-8"]),
        ({"search": "rebase", "search.n": "8", "seed": "0"}, ["rebase-8"]),
    ],
)
def test_runs_are_those_with_every_setting(runs: Path, where: dict[str, str], names: list[str]) -> None:
    assert [run.folder.name for run in find_runs([runs], where)] == names


def test_labels_name_what_differs_among_the_runs_that_are_left(runs: Path) -> None:
    assert [run.label for run in find_runs([runs], {"search": "ets"})] == ["search.n=4", "search.n=8"]


def test_filter_that_no_run_passes_is_an_error(runs: Path) -> None:
    with pytest.raises(ValueError, match=r"no run with search=ets and search\.n=16 in "):
        write_report([runs], runs / "report.html", {"search": "ets", "search.n": "16"})
    with pytest.raises(ValueError, match=r"no run with depth=null"):
        find_runs([runs], {"depth": "null"})


def test_command_line_repeats_filters(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parse_arguments(["all", "--where", "search=ets", "--where", "search.n=4"])
    assert arguments.where == [("search", "ets"), ("search.n", "4")]
    with pytest.raises(SystemExit):
        parse_arguments(["all", "--where", "ets"])
    assert "a filter is SETTING=VALUE, as search=ets, got ets" in capsys.readouterr().err
