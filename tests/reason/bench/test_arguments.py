"""Shared command-line arguments: flags of the last release still work, with one warning."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from reason.bench.arguments import accept_old_flag, count_list, name_list, positive_int, positive_ints, temperature_list


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
