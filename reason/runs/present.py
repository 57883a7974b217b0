"""Prints the heading of a run, the chosen solution and the summary."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from decoding.core import Usage
from reason.runs.pages.explanation import voting_rule_of_row
from reason.runs.papers.judgement import paper_lines
from reason.runs.result import ProblemResult
from reason.runs.summary import CHOSEN, RunSummary

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


def summary_rows(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Returns (name, value, note) of the metrics and of the compute used, as the terminal and the index page show them.

    >>> from dataclasses import asdict
    >>> summary = {"metrics": {"maj@4": {"value": 0.5, "stderr": None}}, "problems": 2, "errors": 0}
    >>> summary |= {"usage": asdict(Usage(tokens=7)), "unscored": 0, "cut": 0, "out_of_budget": 0}
    >>> summary |= {"engine_totals": {}, "seconds": 1.25, "total": 2, "resumed": 0}
    >>> [f"{name} {value}" for name, value, _ in summary_rows(summary)]
    ['maj@4 0.500', 'problems 2', 'tokens 7', 'scorer calls 0', 'seconds 1.2']
    """
    metrics = []
    for name, metric in summary["metrics"].items():
        error = "" if metric["stderr"] is None else f"± {metric['stderr']:.3f}"
        note = "the answers the search chose" if name == CHOSEN else ""
        metrics.append((name, f"{metric['value']:.3f} {error}".strip(), note))
    return metrics + _cost_rows(summary)


def _describe_cut(summary: RunSummary) -> str:
    moves = "search.sampling.max_tokens (model.sampling.max_tokens sets it for every search)"
    preset = (
        "; if they are no thoughts, choose another thinking@model.thinking" if summary["unfinished_thoughts"] else ""
    )
    return (
        f"{summary['cut']:,} of {summary['solutions']:,} solutions ended at a limit without an answer; raise {moves}, "
        f"in a search over steps also search.depth, or the budget{preset}"
    )


def _cost_rows(summary: RunSummary) -> list[tuple[str, str, str]]:
    """Returns (name, value, note) rows."""
    usage, engine = summary["usage"], summary["engine_totals"]
    costs = [
        ("problems", f"{summary['problems']:,}", _problem_note(summary)),
        ("tokens", f"{usage['tokens']:,}", "generated"),
        ("scorer calls", f"{usage['scorer_calls']:,}", f"{usage['scored_tokens']:,} tokens read"),
    ]
    if usage["probes"]:
        costs.append(
            ("probes", f"{usage['probes']:,}", f"of running thoughts; {usage['probe_tokens']:,} of the tokens")
        )
    if summary.get("untrusted"):
        note = "answers with a lower score or share of the votes than trusted_score"
        costs.append(("not trusted", f"{summary['untrusted']:,} of {summary['problems']:,}", note))
    if summary["unscored"]:
        vote = "they vote as search.unscored says; the log names the limit that they hit"
        costs.append(("not scored", f"{summary['unscored']:,} solutions", vote))
    if summary["cut"]:
        thoughts = summary["unfinished_thoughts"]
        note = "no answer before a limit" + (f"; {thoughts:,} ended inside the thought" if thoughts else "")
        costs.append(("cut", f"{summary['cut']:,} of {summary['solutions']:,}", note))
    if summary.get("dropped"):
        note = "less sure than search.drop_percentile allows; they do not vote"
        costs.append(("dropped", f"{summary['dropped']:,} of {summary['solutions']:,}", note))
    if usage["small_tokens"]:
        target_tokens = Usage(**usage).target_tokens
        small = f"{usage['small_tokens']:,} by the small model; {usage['discarded_tokens']:,} discarded"
        costs.insert(2, ("target tokens", f"{target_tokens:,}", f"written by the target model, {small}"))
    if not engine:
        return [*costs, ("seconds", f"{summary['seconds']:,.1f}", "")]
    if engine["forwards"]:
        since = " since resuming" if summary["resumed"] else ""
        note = f"of the target{since}, each for the whole batch"
        costs.insert(2, ("forwards", f"{engine['forwards']:,}", note))
    rate = engine["tokens_per_second"]
    costs.append(("seconds", f"{summary['seconds']:,.1f}", "" if rate is None else f"{rate:,.0f} tokens/s"))
    if engine["accepted_length"] is not None and usage["drafted"]:
        note = f"the bonus token included; {usage['drafted']:,} drafted"
        costs.append(("tokens per forward", f"{engine['accepted_length']:.2f}", note))
    if engine["peak_kv_sharing"] is not None:
        held = f"{engine['peak_kv_tokens']:,} tokens held at the peak, {engine['peak_kv_tokens_unshared']:,} unshared"
        costs.append(("KV shared", f"{engine['peak_kv_sharing']:.1f}x", held))
    elif engine["cached"] is not None:
        costs.append(("cached", f"{engine['cached']:.0%}", "of the prompt tokens, by the servers"))
    return costs


def _problem_note(summary: RunSummary) -> str:
    missing = summary["total"] - summary["problems"]
    notes = [
        (missing, f"{missing} not reached"),
        (summary["errors"], f"{summary['errors']} failed"),
        (summary["resumed"], f"{summary['resumed']} from the earlier run"),
        (summary["out_of_budget"], f"{summary['out_of_budget']} out of budget"),
    ]
    return ", ".join(text for count, text in notes if count)
