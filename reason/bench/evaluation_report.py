"""The comparison as a page: one table, what it means in sentences, plots, and the numbers behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reason.bench.evaluation import (
    BARS,
    SAMPLING,
    AtEqualTokens,
    Summary,
    at_equal_tokens,
    bar_curve,
    by_width,
    right,
    summarise,
    tokens_per_problem,
    tokens_to_reach,
)
from reason.bench.plots import draw, draw_over_time
from reason.bench.runs import Outcome
from reason.bench.tables import markdown
from reason.runs.metrics import Difference, paired_bootstrap

Compared = Mapping[str, Sequence[AtEqualTokens]]  # by the label of a search at a width


def compare(outcomes: Sequence[Outcome]) -> Compared:
    """Every search over steps against samples bought with the same tokens."""
    bars = _samples(outcomes)
    return {_label(o): at_equal_tokens(o, bars) for o in outcomes if o.arm.search.split()[0] not in SAMPLING}


def report(outcomes: Sequence[Outcome], *, command: str, machine: Mapping[str, Any], plots: Mapping[str, Path]) -> str:
    """The whole report in Markdown. `plots` are the files already drawn, by caption."""
    summaries, compared = [summarise(outcome) for outcome in outcomes], compare(outcomes)
    one = outcomes[0].rows[0]
    parts = [
        "# Searches compared at equal compute",
        f"`{command}`",
        ", ".join(f"{key} {value}" for key, value in machine.items()),
        f"{summaries[0].problems} problems of {one['task']}, model {one['model']}, scorer {one['scorer']}, speculation "
        f"{one['speculation']}, seed {one['seed']}. The same problems for every search; intervals are 95 %, by paired "
        "bootstrap over problems. Tokens are what the writer generated; the reward model's are beside them.",
        *(f"![{caption}]({file.name})" for caption, file in plots.items()),
        "## What came out",
        "\n".join(f"- {line}" for line in findings(outcomes, compared)),
        "## Every search at every width",
        _summary_table(summaries),
        "KV in tokens, per problem. *Frontier*: all open branches before each decision, prompt excluded, mean over "
        "the decisions, as the published ETS code counts. *Kept*: what the next step needs, prompt included. *Engine*: "
        "what the running branches of a problem held, measured by the engine, mean over its rounds. *Forwards*: "
        "target forward passes, summed over branches. *Seconds*: wall time of the run over its problems, many of which "
        "are under way at once; as good as the machine was idle. *Busy*: share of it in which the engine had work.",
        "## Against samples bought with the same tokens",
        _equal_table(compared),
        "Difference in accuracy to so many samples, in points, with its interval. `>` marks a search that spent more "
        "than all samples drawn; the comparison is then with fewer tokens.",
        "```json",
        json.dumps({"machine": dict(machine), "arms": [asdict(summary) for summary in summaries]}),
        "```",
    ]
    return "\n\n".join(parts) + "\n"


def findings(outcomes: Sequence[Outcome], compared: Compared) -> list[str]:
    """In sentences: which search pays, which does not, and what ETS saves."""
    trees = [o for o in outcomes if _label(o) in compared]
    top = max(compared, key=lambda label: compared[label][0].difference.value)
    lines = [
        f"At equal tokens the furthest ahead of best-of-N is {top}: {_points(compared[top][0].difference)} points.",
        *_reach_lines(trees, outcomes),
    ]
    losers = [
        f"{label} ({against.bar}: {_points(against.difference)})"
        for label, found in compared.items()
        for against in found
        if against.difference.low <= 0  # where too few samples were drawn, they had fewer tokens than the search
    ]
    listed = "; ".join(losers) or "none of them"
    lines.append(f"Not better than samples for as many tokens or fewer, by the interval: {listed}.")
    return [*lines, *_ets_lines(outcomes)]


def draw_plots(outcomes: Sequence[Outcome], stem: Path) -> dict[str, Path]:
    """Accuracy against tokens, and the engine's occupancy over time; the files by caption."""
    accuracy, occupancy = stem.with_name(stem.name + "-accuracy.png"), stem.with_name(stem.name + "-occupancy.png")
    samples = _samples(outcomes)
    curves = {f"{bar} (bar)": bar_curve(samples, bar) for bar in BARS}
    for search in dict.fromkeys(o.arm.search for o in outcomes if o.arm.search.split()[0] not in SAMPLING):
        arms = by_width(outcomes, search)
        points = sorted((tokens_per_problem(o.rows), float(right(o.rows).mean())) for o in arms.values())
        curves[search] = ([tokens for tokens, _ in points], [value for _, value in points])
    draw(accuracy, {"": curves}, x="tokens per problem", y="accuracy of the chosen answer")
    widest = max(o.arm.width for o in outcomes)
    series = {
        o.arm.search: ([t for t, _, _ in o.timeline], [running for _, running, _ in o.timeline])
        for o in outcomes
        if o.arm.width == widest and o.timeline
    }
    files = {"Accuracy against tokens": accuracy}
    if series:
        draw_over_time(occupancy, series, y=f"running branches, width {widest}")
        files[f"Running branches over time, width {widest}"] = occupancy
    return files


def _reach_lines(trees: Sequence[Outcome], outcomes: Sequence[Outcome]) -> list[str]:
    lines = []
    for width, whole in by_width(outcomes, "best_of_n").items():
        goal, cost = float(right(whole.rows).mean()), tokens_per_problem(whole.rows)
        reached = [o for o in trees if right(o.rows).mean() >= goal]
        if not reached:
            lines.append(f"No tree search reaches best-of-{width}'s {goal:.3f}.")
            continue
        cheapest = min(reached, key=lambda outcome: tokens_per_problem(outcome.rows))
        share = tokens_per_problem(cheapest.rows) / cost
        lines.append(
            f"best-of-{width} is right in {goal:.3f} with {cost:,.0f} tokens; the cheapest tree search to reach that "
            f"is {_label(cheapest)}: {right(cheapest.rows).mean():.3f} with {share:.2f} times the tokens."
        )
    for rule in ("weighted vote", "majority vote"):
        samples = _samples(outcomes)
        best_tree = max(trees, key=lambda outcome: float(right(outcome.rows).mean()))
        need = tokens_to_reach(samples, rule, float(right(best_tree.rows).mean()))
        spent = tokens_per_problem(best_tree.rows)
        how = "never does" if need is None else f"needs {need / spent:.2f} times as many"
        lines.append(
            f"The most accurate tree search, {_label(best_tree)}, is right in {right(best_tree.rows).mean():.3f} with "
            f"{spent:,.0f} tokens; to reach that, {rule} {how}."
        )
    return lines


def _ets_lines(outcomes: Sequence[Outcome]) -> list[str]:
    rebase, lines = by_width(outcomes, "rebase"), []
    for ets in (o for o in outcomes if o.arm.search.split()[0] == "ets" and o.arm.width in rebase):
        other = rebase[ets.arm.width]
        a, b, apart = summarise(ets), summarise(other), paired_bootstrap(right(ets.rows), right(other.rows))
        lines.append(
            f"{_label(ets)} against {_label(other)}: KV smaller by {_ratio(b.kept_kv, a.kept_kv)} kept, "
            f"{_ratio(b.frontier_kv, a.frontier_kv)} at the frontier, {_ratio(b.engine_kv, a.engine_kv)} in the "
            f"engine; accuracy {_points(apart)} points."
        )
    return lines


def _summary_table(summaries: Sequence[Summary]) -> str:
    head = ["search", "width", "accuracy", "interval", "tokens", "forwards", "PRM calls", "PRM tokens", "seconds"]
    head += ["frontier KV", "kept KV", "peak KV", "engine KV", "busy"]
    rows = [
        [
            s.search,
            str(s.width),
            f"{s.accuracy:.3f}",
            f"{s.low:.3f} to {s.high:.3f}",
            *(f"{x:,.0f}" for x in (s.tokens, s.forwards, s.scorer_calls, s.scored_tokens)),
            f"{s.seconds:.1f}",
            *(f"{x:,.0f}" for x in (s.frontier_kv, s.kept_kv, s.peak_kv)),
            "-" if s.engine_kv is None else f"{s.engine_kv:,.0f}",
            "-" if s.busy is None else f"{s.busy:.0%}",
        ]
        for s in summaries
    ]
    return markdown(head, rows)


def _equal_table(compared: Compared) -> str:
    rows = []
    for label, found in compared.items():
        count = f"{'' if found[0].enough else '> '}{found[0].samples}"
        rows.append([label, count, *(_points(against.difference) for against in found)])
    return markdown(["search", "samples", *BARS], rows)


def _samples(outcomes: Sequence[Outcome]) -> Outcome:
    """The widest best-of-N: its samples are what every bar draws from."""
    widths = by_width(outcomes, "best_of_n")
    return widths[max(widths)]


def _label(outcome: Outcome) -> str:
    return f"{outcome.arm.search} {outcome.arm.width}"


def _points(difference: Difference) -> str:
    return f"{100 * difference.value:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def _ratio(more: float | None, less: float | None) -> str:
    return "-" if not more or not less else f"{more / less:.2f}x"
