"""Says what a paper reports beside what a run measured, and whether the run has the published settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reason.config.compose import compose_settings
from reason.config.errors import ConfigError
from reason.runs.papers.estimates import Estimate, estimate_accuracy, estimate_tokens_per_forward
from reason.runs.papers.spec import BETWEEN_RUNS, Paper, PublishedFigure
from reason.runs.result import ProblemResult
from reason.runs.resume import flatten_settings

EXPERIMENT = "experiment"

FREE = (
    *("paper", "log_to", "resume", "plugins", "limit", "seed", "concurrency", "question", "trusted_score"),
    *("scorer_timeout", "engine", "model.name", "model.default_task", "model.stand_in", "model.tool_calls"),
    *(
        f"{group}.{knob}"
        for group in ("scorer", "router", "embedder", "small")
        for knob in ("device", "dtype", "kv_mib", "numerics")
    ),
    *(f"small.{knob}" for knob in ("decoder", "attention", "graphs", "keep_costs")),
    *("small.max_running_requests", "small.max_batched_tokens"),
)
"""Settings of this machine and of this run, which papers do not publish. `limit` shows in the number of problems."""

MOST_NAMED = 8
"""Differences that a line names; the summary has all."""


class RunSettings(NamedTuple):
    """The settings of a run, and the option that it chose of each group."""

    config: Mapping[str, Any]
    choices: Mapping[str, str]

    def by_name(self) -> dict[str, object]:
        """Returns settings by dotted name, and options by group."""
        return {**flatten_settings(self.config), **self.choices}


def judge_run(
    paper: Paper, run: RunSettings, results: Sequence[ProblemResult], *, is_whole: bool = True
) -> dict[str, Any]:
    """Returns the paper's figures beside those of the run, as plain data for `summary.json`.

    `is_whole` is False for a run that was interrupted. A run is a reproduction only where `differences` is empty.
    """
    settings = run.by_name()
    figures = [figure for figure in paper.figures if figure.is_for(settings)]
    differences = [paper.never] if paper.never else []
    if not figures:
        differences += describe_unpublished(paper, settings)
    differences += describe_settings(paper, figures[0] if figures else None, run)
    differences += describe_problems(paper.problems.get(run.choices.get("task", "")), results, is_whole=is_whole)
    return {
        "title": paper.title,
        "arxiv": paper.arxiv,
        "hardware": paper.hardware,
        "hours": paper.hours,
        "figures": [_judge_figure(figure, results) for figure in figures],
        "is_reproduction": not differences,
        "differences": differences,
        "differs": list(paper.differs),
    }


def describe_unpublished(paper: Paper, settings: Mapping[str, object]) -> list[str]:
    """Says for which settings the paper has figures where it has none for these."""
    texts = []
    for key in dict.fromkeys(key for figure in paper.figures for key in figure.at):
        allowed = [value for figure in paper.figures if key in figure.at for value in figure.allowed_values(key)]
        if key in settings and settings[key] not in allowed:
            options = " or ".join(dict.fromkeys(map(str, allowed)))
            texts.append(f"{key} is {settings.get(key)} and not {options}")
    return texts or ["the paper has no figure for these settings together"]


def describe_settings(paper: Paper, figure: PublishedFigure | None, run: RunSettings) -> list[str]:
    """Names each setting of the run that is not that of its experiment, at the figure's settings.

    Without a figure it is at those settings of the run for which the paper has some figure; `describe_unpublished`
    names the others.
    """
    name = run.choices.get(EXPERIMENT)
    if name is None:
        return ["the published settings are those of +experiment=..., and none was chosen"]
    here = run.by_name()
    known = [figure] if figure is not None else paper.figures
    at = {key for some in known for key in some.at if here.get(key) in some.allowed_values(key)}
    try:
        overrides = [f"+{EXPERIMENT}={name}", *(f"{key}={here[key]}" for key in sorted(at))]
        published = RunSettings(*compose_settings(overrides))
    except ConfigError as error:
        return [f"the settings of {EXPERIMENT}={name} cannot be composed ({error})"]
    described = {key for some in known for key in some.at}
    free = {*FREE, *paper.free}
    groups = {
        group: option
        for group, option in published.choices.items()
        if not group.startswith(("hydra", "sampling", EXPERIMENT)) and str(run.choices.get(group)) != str(option)
    }
    texts = [
        f"{group} is {run.choices.get(group)} and not {option}"
        for group, option in groups.items()
        if group not in described and not _is_below(group, free)
    ]
    skipped = free | {group.partition("@")[2] or group for group in groups}  # another option has other settings
    then = flatten_settings(published.config)
    for key in sorted(then.keys() | here.keys() - run.choices.keys()):
        is_named = key in described or key.endswith("_target_") or _is_below(key, skipped)
        if not is_named and here.get(key) != then.get(key):
            texts.append(f"{key} is {_format_value(here.get(key))} and not {_format_value(then.get(key))}")
    return texts


def describe_problems(total: int | None, results: Sequence[ProblemResult], *, is_whole: bool) -> list[str]:
    """Says how much of a data set of `total` problems is missing, or was not solved to the end.

    `total` is None for a task that the paper did not use, which is named among the settings.
    """
    texts = [] if total in (None, len(results)) else [f"{len(results):,} of {total:,} problems"]
    if failed := sum(result.error is not None for result in results):
        texts.append(f"{failed:,} problems failed")
    if ended := sum(result.stopped == "budget" for result in results):
        texts.append(f"{ended:,} problems out of budget")
    if lacking := sum(not result.has_gold for result in results):
        texts.append(f"{lacking:,} problems without a gold answer")
    return texts if is_whole else [*texts, "the run was interrupted"]


def paper_lines(judged: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (name, text) lines about the paper, for the terminal and the index page."""
    lines = [("paper", f"{judged['title']} (arXiv {judged['arxiv']}); {judged['hardware']}, {judged['hours']}")]
    for figure in judged["figures"]:
        lines.append((str(figure["metric"]).replace("_", " "), f"{_published_text(figure)}; {_text_of_ours(figure)}"))
    differences: list[str] = judged["differences"]
    if judged["is_reproduction"]:
        verdict = "the published settings"
    else:
        more = f"; and {len(differences) - MOST_NAMED} more" if len(differences) > MOST_NAMED else ""
        verdict = f"not a reproduction: {'; '.join(differences[:MOST_NAMED])}{more}"
    lines.append(("reproduction", verdict))
    if judged["differs"]:
        lines.append(("differs anyway", "; ".join(judged["differs"])))
    return lines


def format_estimate(estimate: Estimate | None) -> str:
    """Formats a value with its interval.

    >>> format_estimate(Estimate(0.5, 0.094, 0.906)), format_estimate(None)
    ('0.500, 95 % interval 0.094 to 0.906', 'not measured')
    """
    if estimate is None:
        return "not measured"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}, too few problems for an interval"
    return f"{estimate.value:.3f}, 95 % interval {estimate.low:.3f} to {estimate.high:.3f}"


def _published_text(figure: Mapping[str, Any]) -> str:
    if figure["published"] is None:
        return f"published: {figure['promise']} ({figure['where']})"
    return f"published {figure['published']:g} ({figure['where']})"


def _text_of_ours(figure: Mapping[str, Any]) -> str:
    if figure["over"]:
        other = ", ".join(f"{key}={value}" for key, value in figure["over"].items())
        return f"here it takes the run with {other} too: reason report with both folders prints it"
    ours = figure["ours"]
    return f"here {format_estimate(None if ours is None else Estimate(ours, figure['low'], figure['high']))}"


def _judge_figure(figure: PublishedFigure, results: Sequence[ProblemResult]) -> dict[str, Any]:
    estimate: Estimate | None = None
    if figure.metric not in BETWEEN_RUNS:
        estimate = (estimate_accuracy if figure.metric == "accuracy" else estimate_tokens_per_forward)(results)
    value, low, high = (None, None, None) if estimate is None else estimate
    return {
        "metric": figure.metric,
        "where": figure.where,
        "published": figure.value,
        "promise": figure.promise,
        "over": dict(figure.over),
        "ours": value,
        "low": low,
        "high": high,
    }


def _format_value(value: object) -> str:
    return "null" if value is None else str(value)


def _is_below(key: str, names: set[str]) -> bool:
    """Returns whether a name is `key` or a group above it."""
    return any(key == name or key.startswith((f"{name}.", f"{name}@")) for name in names)
