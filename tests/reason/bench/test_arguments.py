"""Shared command-line arguments: flags of the last release still work, with one warning."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from reason.bench.arguments import (
    accept_old_flag,
    add_report_argument,
    count_list,
    name_list,
    positive_int,
    positive_ints,
    report_path,
    run_benchmark,
    temperature,
    temperature_list,
)


@pytest.mark.parametrize(
    ("script", "old", "new", "value"),
    [
        ("speculation", "--contenders", "--drafter-setups", "stand_coupled,suffix"),
        ("speculation", "--racers", "--speed-setups", "stand,plain"),
        ("tune_tree", "--contender", "--drafter-setup", "stand_rejection"),
        ("compare_routers", "--race", "--timed-setting", "cue-1"),
        ("compare_routers", "--laps", "--timing-repeats", "2"),
        ("compare_sglang", "--arms", "--variants", "plain,NGRAM"),
    ],
)
def test_old_flag_is_read_as_the_new_one_with_one_warning(
    script: str, old: str, new: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = import_module(f"reason.commands.bench.{script}").make_parser()
    expected = parser.parse_args([new, value])
    assert capsys.readouterr().err == ""
    assert parser.parse_args([old, value]) == expected
    assert capsys.readouterr().err == f"warning: {old} is now {new}; the next release drops the old name\n"
    assert f"{old} " not in parser.format_help()


def test_alias_keeps_the_default_and_the_checks_of_the_new_flag() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    accept_old_flag(parser, "--laps", parser.add_argument("--repeats", type=positive_int, default=3))
    assert parser.parse_args([]).repeats == 3
    assert parser.parse_args(["--laps", "5"]).repeats == 5
    with pytest.raises(argparse.ArgumentError, match="must be an int >= 1, got 0"):
        parser.parse_args(["--laps", "0"])


def test_list_arguments_are_parsed_and_checked() -> None:
    assert positive_ints("1,4,16") == (1, 4, 16)
    assert count_list("0,4") == (0, 4)
    assert temperature_list("1,0.6,0") == (1.0, 0.6, 0.0)
    assert name_list("stand, suffix") == ("stand", "suffix")
    with pytest.raises(argparse.ArgumentTypeError, match="must be ints from 1 to 1000000, got 0,1"):
        positive_ints("0,1")
    with pytest.raises(argparse.ArgumentTypeError, match="must be ints from 0 to 1000000, got 0,-1"):
        count_list("0,-1")
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be numbers from 0 to 100\.0, got -1"):
        temperature_list("-1")
    assert temperature("0.6") == 0.6
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a number from 0 to 100\.0, got nan"):
        temperature("nan")


def test_report_is_a_file_whose_folder_is_made_at_once(tmp_path: Path) -> None:
    assert report_path(str(tmp_path / "new" / "report.md")).parent.is_dir()
    with pytest.raises(argparse.ArgumentTypeError, match="is a folder: name a file"):
        report_path(str(tmp_path / "new"))
    (tmp_path / "file").touch()
    with pytest.raises(argparse.ArgumentTypeError, match="its folder cannot be made"):
        report_path(str(tmp_path / "file" / "report.md"))


@pytest.mark.parametrize(
    ("script", "flag", "value"),
    [
        ("replay", "--plot", "."),
        ("replay", "--limit", "-1"),
        ("speculation", "--plots", "file/plot"),
        ("evaluate", "--write-front", "."),
        ("systems", "--out", "."),
        ("systems", "--figures", "file/figures.json"),
        ("serving", "--clients", "1,0"),
        ("context_cost", "--contexts", "100,1024"),
        ("context_cost", "--device", "cpu"),  # its model has neither device nor dtype
        ("tune_tree", "--temperature", "-1"),
    ],
)
def test_value_that_would_fail_after_hours_is_refused_at_once(
    script: str, flag: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    needed = ["traces.jsonl"] if script == "replay" else []
    with pytest.raises(SystemExit) as refused:
        import_module(f"reason.commands.bench.{script}").make_parser().parse_args([*needed, flag, value])
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [(KeyboardInterrupt(), 130, "stopped"), (ValueError("there is no such shape"), 2, "there is no such shape")],
)
def test_benchmark_that_ends_early_keeps_what_it_printed(
    error: BaseException,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(args: argparse.Namespace, console: Console) -> dict[str, object]:
        console.print("8 nodes: 2.5 tokens")
        raise error

    parser = argparse.ArgumentParser()
    add_report_argument(parser)
    report, lines = tmp_path / "report.md", tmp_path / "report.stopped.txt"
    report.write_text("of an earlier run")
    monkeypatch.setattr(sys, "argv", ["bench", "--out", str(report)])
    for of_process in ("logging.disable", "reason.bench.arguments.collect_seldom"):  # other tests are in this one
        monkeypatch.setattr(of_process, lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        run_benchmark(parser, measure)
    assert ended.value.code == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{message} (what was printed is in {lines})" in printed.err
    assert lines.read_text() == "8 nodes: 2.5 tokens\n"
    assert report.read_text() == "of an earlier run"
