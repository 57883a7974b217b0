"""Prints the heading of a run, the chosen solution and the summary."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from reason.runs.pages.explanation import voting_rule_of_row
from reason.runs.papers.judgement import paper_lines
from reason.runs.result import ProblemResult
from reason.runs.summary import RunSummary
from reason.runs.summary_rows import summary_rows

MOST_CUT = 0.1
"""Share of solutions that may end at a limit without an answer before the summary warns."""


NOT_TRUSTED = "not trusted: the score, or without a reward model the share of the votes, is below trusted_score"


VOTE_NAMES = {
    None: "votes",
    "majority": "votes",
    "weighted": "votes, as sums of scores",
    "best": "best score of each answer",
}


def format_heading(names: Mapping[str, object], problems: int) -> str:
    """Formats the first line of a run from its metadata: the parts, the data, and whether the output is lossy.

    >>> names = {"model": "m", "model_path": "org/m", "search": "s", "scorer": "p", "engine": "e"}
    >>> format_heading(names | {"speculation": "off", "task": "sums", "stands_in_for": "aime"}, 2)
    'model m (org/m), search s, scorer p, engine e, speculation off; data: sums (2 problems), standing in for aime'
    >>> format_heading(names | {"speculation": "off", "task": "sums", "lossy": "router=cue"}, 1)
    'model m (org/m), search s, scorer p, engine e, speculation off; data: sums (1 problem); lossy: router=cue'
    """
    groups = ["model", "search", "scorer", "engine", "speculation"]
    if names.get("router", "off") != "off":
        groups.append("router")
    if "early_exit" in names:
        groups.append("early_exit")
    if "eviction" in names:
        groups.append("eviction")
    parts = ", ".join(_format_part(names, group) for group in groups)
    count = f"{problems} problem{'s' if problems != 1 else ''}"
    stands_in = f", standing in for {names['stands_in_for']}" if "stands_in_for" in names else ""
    lossy = f"; lossy: {names['lossy']}" if names.get("lossy") else ""
    return f"{parts}; data: {names['task']} ({count}){stands_in}{lossy}"


def _format_part(names: Mapping[str, object], group: str) -> str:
    path = names.get(f"{group}_path")
    return f"{group.replace('_', ' ')} {names[group]}" + (f" ({path})" if path and path != names[group] else "")


def print_solution(result: ProblemResult, console: Console) -> None:
    """Prints the chosen solution of one question, its score and the votes."""
    if result.error is not None:
        console.print(f"failed: {result.error}", style="red", markup=False)
        return
    if result.thought:
        console.print(f"(a thought of {len(result.thought):,} characters is in the row)", style="dim", markup=False)
    console.print(result.text.strip() or "(nothing finished)", markup=False, soft_wrap=True)
    console.print()
    score = "not scored" if result.score is None else f"score {result.score:.3f}"
    console.print(f"answer {result.answer}, {score}", style="bold", markup=False)
    if result.is_trusted is False and result.answer is not None:
        console.print(NOT_TRUSTED, style="yellow", markup=False, soft_wrap=True)
    votes = sorted(result.votes.items(), key=lambda item: -item[1])
    if votes:
        weights = ", ".join(f"{answer}: {weight:.3g}" for answer, weight in votes)
        console.print(f"{VOTE_NAMES[voting_rule_of_row(result)]}  {weights}", markup=False)


def print_summary(summary: RunSummary, console: Console) -> None:
    """Prints accuracy with standard errors, then compute used, and where the results are."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in summary_rows(summary):
        table.add_row(*row)
    console.print()
    console.print(table)
    if summary["cut"] > MOST_CUT * summary["solutions"]:
        console.print(_describe_cut(summary), style="yellow", markup=False, soft_wrap=True)
    if summary.get("lossy"):
        text = f"lossy: {summary['lossy']}; the text is not distributed as the target model's"
        console.print(text, style="yellow", markup=False, soft_wrap=True)
    for name, text in paper_lines(summary["paper"]) if "paper" in summary else ():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    console.print(f"results in {summary['folder']}", markup=False, soft_wrap=True)
    console.print(f"to look at in a browser: {summary['page']}", markup=False, soft_wrap=True)


def _describe_cut(summary: RunSummary) -> str:
    moves = "search.sampling.max_tokens (model.sampling.max_tokens sets it for every search)"
    preset = (
        "; if they are no thoughts, choose another thinking@model.thinking" if summary["unfinished_thoughts"] else ""
    )
    return (
        f"{summary['cut']:,} of {summary['solutions']:,} solutions ended at a limit without an answer; raise {moves}, "
        f"in a search over steps also search.depth, or the budget{preset}"
    )
