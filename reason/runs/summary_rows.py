"""Formats what a run found and what it cost as rows, for the terminal and for pages."""

from __future__ import annotations

from decoding.core import Usage
from reason.runs.summary import CHOSEN, RunSummary


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
    if allocated := summary.get("allocated"):
        spread = f"{allocated['least']} to {allocated['most']}, median {allocated['median']:g}"
        costs.insert(
            1, ("samples", f"{allocated['samples']:,}", f"{spread} per problem, as allocation.samples divides them")
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
    if (speedup := engine.get("speculation_speedup")) is not None and usage["drafted"]:
        costs.append(("speculation", f"{speedup:.2f}x", "speed, as estimated from the plain rounds of this run"))
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
