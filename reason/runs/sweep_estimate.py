"""Estimates the tokens and the time of a sweep from a trial of it on a few problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reason.config.errors import ConfigError
from reason.runs.json_files import parse_json, read_whole_lines
from reason.runs.output_folder import read_regular
from reason.runs.result import parse_results
from reason.runs.run import RESULTS, SUMMARY

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class SweepBudget(NamedTuple):
    """What a sweep may take; None is no limit."""

    tokens: int | None = None
    seconds: float | None = None


class Span(NamedTuple):
    """From `low` to `high`."""

    low: float
    high: float


@dataclass(frozen=True)
class RunTrial:
    """What the trial of one run of the sweep took.

    tokens       of each problem that was tried
    seconds      of solving them, side by side
    concurrency  problems that the run solves side by side
    problems     that the whole run has
    """

    tokens: Sequence[int]
    seconds: float
    concurrency: int
    problems: int


@dataclass(frozen=True)
class SweepEstimate:
    """Tokens written and seconds of a whole sweep.

    The span of tokens has all other problems as cheap, or as dear, as the cheapest or dearest that was tried of that
    run. The span of seconds has as many problems side by side as the run allows at no cost, or only those tried.
    """

    runs: int
    problems: int
    tried: int
    tokens: Span
    seconds: Span

    def describe(self) -> str:
        """Returns the line that is printed."""
        low, high = self.tokens
        return (
            f"estimate: {self.runs:,} runs, {self.problems:,} problems in all, {low:,.0f} to {high:,.0f} tokens, "
            f"{format_seconds(self.seconds.low)} to {format_seconds(self.seconds.high)}; from {self.tried:,} problems "
            "tried, so rarer and longer problems are not in it"
        )

    def refusal(self, budget: SweepBudget) -> str | None:
        """Returns why the sweep is above its budget, by the upper end of the estimate; None where it is not."""
        if budget.tokens is not None and self.tokens.high > budget.tokens:
            return f"up to {self.tokens.high:,.0f} tokens are above the budget of {budget.tokens:,}"
        if budget.seconds is not None and self.seconds.high > budget.seconds:
            return f"up to {format_seconds(self.seconds.high)} are above the budget of {format_seconds(budget.seconds)}"
        return None


def parse_budget(text: str) -> SweepBudget:
    """Returns the budget of a command line: tokens, or a time with its unit; without a text there is no limit.

    >>> parse_budget("500_000"), parse_budget("1.5h").seconds
    (SweepBudget(tokens=500000, seconds=None), 5400.0)

    Raises: ConfigError.
    """
    number = re.fullmatch(r"([\d_]*\.?\d+)\s*([a-z]*)", text.strip().lower().replace(",", ""))
    if not text:
        return SweepBudget()
    if number is None or (number[2] and number[2] not in UNITS) or float(number[1].replace("_", "")) <= 0:
        raise ConfigError(f"--budget must be tokens, such as 500000, or a time, such as 90s, 30m or 2h, got {text}")
    value = float(number[1].replace("_", ""))
    return SweepBudget(seconds=value * UNITS[number[2]]) if number[2] else SweepBudget(tokens=int(value))


def estimate_sweep(folder: Path, wall: float, limit: int | None) -> SweepEstimate:
    """Returns the estimate from the trial in `folder`, which took `wall` seconds.

    `limit` is the most problems that each run has.

    Raises: ConfigError where the trial left no run.
    """
    trials = [read_trial(file.parent, limit) for file in sorted(folder.rglob(SUMMARY))]
    if not trials:
        raise ConfigError("the trial for the estimate left no run that could be measured")
    return estimate_trials(trials, max(0.0, wall - sum(trial.seconds for trial in trials)))


def estimate_trials(trials: Sequence[RunTrial], loading: float) -> SweepEstimate:
    """Returns the estimate of the runs, with `loading` seconds for all that is not solving."""
    low = [trial.seconds * max(1.0, trial.problems / max(len(trial.tokens), trial.concurrency)) for trial in trials]
    high = [trial.seconds * trial.problems / len(trial.tokens) for trial in trials]
    return SweepEstimate(
        runs=len(trials),
        problems=sum(trial.problems for trial in trials),
        tried=sum(len(trial.tokens) for trial in trials),
        tokens=Span(
            sum(min(trial.tokens) * trial.problems for trial in trials),
            sum(max(trial.tokens) * trial.problems for trial in trials),
        ),
        seconds=Span(loading + sum(low), loading + sum(high)),
    )


def read_trial(home: Path, limit: int | None) -> RunTrial:
    """Reads what one run of the trial took. Raises: ConfigError, OutputError."""
    summary = parse_json(read_regular(home / SUMMARY))
    rows = list(parse_results(read_whole_lines(home / RESULTS), home / RESULTS).values())
    failed = [row.error for row in rows if row.error is not None]
    if failed or not rows:
        raise ConfigError(f"a problem of the trial failed, so there is no estimate ({failed[0] if failed else home})")
    problems = int(summary["task_problems"])
    return RunTrial(
        tokens=[row.usage.tokens for row in rows],
        seconds=float(summary["seconds"]),
        concurrency=int(summary["concurrency"]),
        problems=problems if limit is None else min(limit, problems),
    )


def format_seconds(seconds: float) -> str:
    """Formats a time.

    >>> [format_seconds(s) for s in (12.3, 90, 5400)]
    ['12 s', '1.5 min', '1.5 h']
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
