"""What a person is told before and after a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from decoding.core import Spent
from reason.runs.result_file import Row
from reason.runs.summary import CHOSEN


def heading(names: Mapping[str, str], problems: int) -> str:
    """The first line of a run: what solves what, and whether the data stands in for something else.

    >>> names = {"model": "m", "model_path": "org/m", "search": "s", "scorer": "p", "engine": "e"}
    >>> heading(names | {"speculation": "off", "task": "sums", "stands_in_for": "aime"}, 2)
    'model m (org/m), search s, scorer p, engine e, speculation off; data: sums (2 problems), standing in for aime'
    """
    groups = ["model", "search", "scorer", "engine", "speculation"]
    if names.get("router", "off") != "off":
        groups.append("router")
    who = ", ".join(_with_path(names, group) for group in groups)
    many = f"{problems} problem{'s' if problems != 1 else ''}"
    stands_in = f", standing in for {names['stands_in_for']}" if "stands_in_for" in names else ""
    return f"{who}; data: {names['task']} ({many}){stands_in}"


def _with_path(names: Mapping[str, str], group: str) -> str:
    path = names.get(f"{group}_path")
    name = f"{group} {names[group]}" + (" (lossy: a small model writes what stays)" if group == "router" else "")
    return name + (f" ({path})" if path and path != names[group] else "")


def show_solution(row: Row, console: Console) -> None:
    """The winning solution of one question, its score and the votes."""
    if row["error"] is not None:
        console.print(f"failed: {row['error']}", style="red", markup=False)
        return
    console.print(row["text"].strip() or "(nothing finished)", markup=False, soft_wrap=True)
    console.print()
    score = "not scored" if row["score"] is None else f"score {row['score']:.3f}"
    console.print(f"answer {row['answer']}, {score}", style="bold", markup=False)
    votes = sorted(row["votes"].items(), key=lambda item: -item[1])
    if votes:
        console.print("votes  " + ", ".join(f"{answer}: {weight:.3g}" for answer, weight in votes), markup=False)


def show_table(summary: Mapping[str, Any], console: Console) -> None:
    """Accuracy with standard errors, then what it took and where the results are."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, metric in summary["metrics"].items():
        error = "" if metric["stderr"] is None else f"± {metric['stderr']:.3f}"
        note = "the answers the search chose" if name == CHOSEN else ""
        table.add_row(name, f"{metric['value']:.3f} {error}".strip(), note)
    for name, value, note in _costs(summary):
        table.add_row(name, value, note)
    console.print()
    console.print(table)
    console.print(f"results in {summary['folder']}", markup=False, soft_wrap=True)
    console.print(f"to look at in a browser: {summary['page']}", markup=False, soft_wrap=True)


def _costs(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    spent, engine = summary["spent"], summary["engine_totals"]
    unfinished = summary["total"] - summary["problems"]
    costs = [
        ("problems", f"{summary['problems']:,}", _noted(summary, unfinished)),
        ("tokens", f"{spent['tokens']:,}", "generated"),
        ("scorer calls", f"{spent['scorer_calls']:,}", f"{spent['scored_tokens']:,} tokens read"),
    ]
    if spent["draft_tokens"]:
        target = Spent(**spent).target_tokens
        thrown = f"{spent['draft_tokens']:,} by the small one; {spent['discarded_tokens']:,} thrown away"
        costs.insert(2, ("target tokens", f"{target:,}", f"written by the large model, {thrown}"))
    if engine:
        since = " since resuming" if summary["resumed"] else ""
        if engine["forwards"]:
            forwards = f"of the target{since}, each for the whole batch"
            costs.insert(2, ("forwards", f"{engine['forwards']:,}", forwards))
        rate = engine["tokens_per_second"]
        costs.append(("seconds", f"{summary['seconds']:,.1f}", "" if rate is None else f"{rate:,.0f} tokens/s"))
        if engine["accepted_length"] is not None and spent["drafted"]:
            faster = f", an estimated {engine['speedup']:.1f}x of plain decoding" if engine["speedup"] else ""
            note = f"the one not guessed included; {spent['drafted']:,} guessed{faster}"
            costs.append(("tokens per forward", f"{engine['accepted_length']:.2f}", note))
        if engine["peak_kv_sharing"] is not None:
            held = (
                f"{engine['peak_kv_tokens']:,} tokens held at the peak, {engine['peak_kv_tokens_unshared']:,} unshared"
            )
            costs.append(("KV shared", f"{engine['peak_kv_sharing']:.1f}x", held))
        elif engine["cached"] is not None:
            costs.append(("cached", f"{engine['cached']:.0%}", "of the prompts' tokens, by the servers"))
    else:
        costs.append(("seconds", f"{summary['seconds']:,.1f}", ""))
    return costs


def _noted(summary: Mapping[str, Any], unfinished: int) -> str:
    notes = [
        (unfinished, f"{unfinished} not reached"),
        (summary["errors"], f"{summary['errors']} failed"),
        (summary["resumed"], f"{summary['resumed']} from the earlier run"),
        (summary["out_of_budget"], f"{summary['out_of_budget']} out of budget"),
    ]
    return ", ".join(text for count, text in notes if count)
