"""Finds the pairs of runs whose ratio a paper reports, and puts its figure beside theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reason.config.errors import ConfigError
from reason.runs.gather import FoundRun
from reason.runs.papers.estimates import estimate_between
from reason.runs.papers.judgement import RunSettings, format_estimate, judge_run
from reason.runs.papers.spec import METRICS, Paper, PublishedFigure, read_paper
from reason.runs.resume import load_settings

SAME = ("task", "model.path", "scorer.path", "seed")
"""Settings that two runs must share before one is divided by the other."""


def describe_pairs(runs: Sequence[FoundRun]) -> list[str]:
    """Returns a line per run and figure that needs a second run: the paper's figure beside ours, or what is missing."""
    known = {run.folder: _read_settings(run) for run in runs if run.broken is None}
    lines = []
    for run in runs:
        settings = known.get(run.folder)
        if settings is None:
            continue
        paper = _read_paper(settings)
        if paper is None:
            continue
        for figure in _figures_over(paper, settings):
            published = f"published {figure.value:g}" if figure.value is not None else f"published: {figure.promise}"
            text = f"{figure.metric} of {run.label}: {published} ({figure.where}, arXiv {paper.arxiv})"
            other = next((o for o in runs if _is_partner(settings, figure, known.get(o.folder))), None)
            change = ", ".join(f"{key}={value}" for key, value in figure.over.items())
            if other is None:
                lines.append(f"{text}; here it takes the same run with {change} too")
                continue
            estimate = estimate_between(figure.metric, run.results, other.results)
            judged = judge_run(paper, settings, run.results, is_whole=run.state == "done")
            is_shared = {row.id for row in run.results} == {row.id for row in other.results} and other.state == "done"
            differences = [*judged["differences"], *([] if is_shared else ["the other run lacks problems"])]
            verdict = "not a reproduction: " + "; ".join(differences) if differences else "the published settings"
            lines.append(f"{text}; here, over {change}, {format_estimate(estimate)}; {verdict}")
    return lines


def describe_metrics() -> list[str]:
    """Returns the meanings of the figures between runs."""
    return [f"{name}: {METRICS[name]}" for name in ("kv_ratio", "speed_ratio", "accuracy_gain")]


def _figures_over(paper: Paper, settings: RunSettings) -> list[PublishedFigure]:
    """Returns the figures between runs for these settings; else the first for these options of groups, such as ETS
    at another width: the differences are named beside it."""
    names = settings.by_name()
    figures = [figure for figure in paper.figures if figure.over]
    exact = [figure for figure in figures if figure.is_for(names)]
    near = [
        figure
        for figure in figures
        if all(names.get(key) in figure.allowed_values(key) for key in figure.at if key in settings.choices)
    ]
    return exact or near[:1]


def _is_partner(settings: RunSettings, figure: PublishedFigure, other: RunSettings | None) -> bool:
    """Returns whether the other run has `figure.over`, and otherwise what the figure and `SAME` name."""
    if other is None:
        return False
    ours, theirs = settings.by_name(), other.by_name()
    shared = [*SAME, *(key for key in figure.at if not _is_changed(key, figure.over))]
    return all(theirs.get(key) == value for key, value in figure.over.items()) and all(
        ours.get(key) == theirs.get(key) for key in shared
    )


def _is_changed(key: str, over: Mapping[str, object]) -> bool:
    """Returns whether another option of a group changes this setting: that of the group, or one that it alone has."""
    return any(key == name or (key.startswith(f"{name}.") and key != "search.n") for name in over)


def _read_settings(run: FoundRun) -> RunSettings | None:
    try:
        saved = load_settings(run.folder)
    except ConfigError:
        return None
    return RunSettings(saved.config, saved.choices)


def _read_paper(settings: RunSettings) -> Paper | None:
    try:
        return read_paper(settings.config.get("paper"))
    except ValueError:
        return None
