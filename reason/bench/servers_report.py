"""Formats the tables and the report of the comparison of SGLang servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from reason.bench.servers import FIXED, NGRAM, OURS, PLAIN, RECURSIVE
from reason.runs.tables import ResultTable

REQUIRED_RATIO = 1.1
REQUIRED_SPEED = 0.97

Row = dict[str, Any]  # plain data: a whole result, or a speed run of it

RULES = {
    NGRAM: "SGLang's own code path for sampling over trees, with a stand-in for its compiled rule, for GPUs only: a "
    "uniform random number per node keeps the first child at which the target's summed probabilities exceed it, else "
    "the target is sampled without those children. (On a CPU SGLang would otherwise keep the likeliest tokens at any "
    "temperature.)",
    FIXED: "coupled acceptance, with the most draft nodes in every round.",
    OURS: "coupled acceptance; the server chooses the draft nodes of each round, none too. The noise of a node, keyed "
    "by seed and position, determines the target's token, and a child is accepted if it is that token.",
    RECURSIVE: "recursive rejection over children drawn without replacement.",
}
"""The acceptance rules at temperature 1."""

READING = """\
None of this changes the target's distribution, and the last table is a check of that: a rule that accepts likely
tokens too often gives likelier texts than plain decoding. Accepted length is tokens per verification step of a branch,
with the bonus token and without the first token, which comes from the prefill; a mean over the families of problems.
SGLang's own acceptance rate counts padding as draft tokens and is not used."""


def make_tables(result: Row) -> list[ResultTable]:
    """Returns all tables of a result, the goals first."""
    runs = result["speed_runs"]
    return [
        _goal_table(result["goals"]),
        _speed_goal_table(runs),
        _grid("Accepted length, by live branches", runs, _length_cell),
        _grid("Tokens per second relative to plain, by live branches", runs, _speed_cell),
        _grid("Tokens per second, by live branches", runs, lambda run: f"{run['tokens_per_s']:,.0f}"),
        _grid("Draft nodes of a request and round (rounds without drafts), by live branches", runs, _node_cell),
        _grid("Mean log-probability of the generated tokens", runs, _logprob_cell),
    ]


def judge_lengths(runs: Sequence[Row]) -> list[Row]:
    """Returns our accepted length over that of SGLang's n-grams, for each number of live branches of both.

    >>> run = {"variant": "NGRAM", "live": 4, "accepted_length": 2.0}
    >>> judge_lengths([run, run | {"variant": "REASON", "accepted_length": 2.1}])
    [{'live': 4, 'ratio': 1.05, 'required': 1.1, 'verdict': 'short by 0.050'}]
    """
    lengths = {(run["variant"], run["live"]): run["accepted_length"] for run in runs}
    goals: list[Row] = []
    for variant, live in lengths:
        if variant == OURS and (NGRAM, live) in lengths:
            ratio = lengths[OURS, live] / lengths[NGRAM, live]
            verdict = "PASS" if ratio >= REQUIRED_RATIO else f"short by {REQUIRED_RATIO - ratio:.3f}"
            goals.append({"live": live, "ratio": ratio, "required": REQUIRED_RATIO, "verdict": verdict})
    return goals


def format_report(result: Row, command: str) -> str:
    """Returns the report in Markdown."""
    head = [
        "# SGLang on a CPU: plain, its n-grams, our speculation",
        "",
        f"`{command}`",
        "",
        ", ".join(f"{key} {value}" for key, value in result["machine"].items()) + f", SGLang {result['sglang']}",
        "",
        f"Bundled target, {result['problems']} held-out problems of {', '.join(result['families'])}, "
        f"{result['trajectories']} samples of each at temperature 1, at most {result['max_tokens']} tokens. Up to "
        f"{result['nodes'] - 1} draft tokens per branch and step (`--speculative-num-draft-tokens "
        f"{result['nodes']}`). Medians of {result['repeats']} repetitions with other samples; in each, every server "
        "decodes everything once, with an empty cache and empty draft tables, while the others are paused.",
        "",
        "Acceptance rules:",
        "",
        *(
            f"- {name}: {rule}"
            for name, rule in RULES.items()
            if name in {run["variant"] for run in result["speed_runs"]}
        ),
        "",
        READING,
        "",
    ]
    body = [line for table in make_tables(result) for line in table.markdown_section()]
    return "\n".join([*head, *body, "```json", json.dumps(result), "```", ""])


def _goal_table(goals: Sequence[Row]) -> ResultTable:
    rows = [[str(goal["live"]), f"{goal['required']:g}", f"{goal['ratio']:.3f}", goal["verdict"]] for goal in goals]
    return ResultTable(f"Accepted length of {OURS} over {NGRAM}'s", ["live", "required", "measured", "verdict"], rows)


def _speed_goal_table(runs: Sequence[Row]) -> ResultTable:
    title, columns = f"Tokens per second of {OURS} over plain's", ["live", "required", "measured", "verdict"]
    rows = [
        [str(run["live"]), f"{REQUIRED_SPEED:g}", f"{run['speed']:.3f}", judge_speed(run["speed"])]
        for run in runs
        if run["variant"] == OURS
    ]
    return ResultTable(title, columns, rows)


def judge_speed(speed: float) -> str:
    """Returns whether drafting costs no throughput.

    >>> judge_speed(0.98), judge_speed(0.95)
    ('PASS', 'short by 0.020')
    """
    return "PASS" if speed >= REQUIRED_SPEED else f"short by {REQUIRED_SPEED - speed:.3f}"


def _node_cell(run: Row) -> str:
    return f"{run['nodes']:.1f} ({run['plain_rounds']:.0%})" if run["variant"] in (FIXED, OURS, RECURSIVE) else "-"


def _length_cell(run: Row) -> str:
    lengths = run["accepted_lengths"]
    spread = "" if run["variant"] == PLAIN else f" ({min(lengths):.2f}-{max(lengths):.2f})"
    return f"{run['accepted_length']:.2f}{spread}"


def _speed_cell(run: Row) -> str:
    speeds = run["speeds"]
    spread = "" if run["variant"] == PLAIN else f" ({min(speeds):.2f}-{max(speeds):.2f})"
    return f"{run['speed']:.2f}x{spread}"


def _logprob_cell(run: Row) -> str:
    return f"{median(run['logprobs']):.3f} ({min(run['logprobs']):.3f} to {max(run['logprobs']):.3f})"


def _grid(title: str, runs: Sequence[Row], cell: Callable[[Row], str]) -> ResultTable:
    """One row per variant, one column per number of live branches."""
    cells = {(run["variant"], run["live"]): cell(run) for run in runs}
    variants, live = (list(dict.fromkeys(run[key] for run in runs)) for key in ("variant", "live"))
    return ResultTable(title, ["", *map(str, live)], [[name, *(cells[name, n] for n in live)] for name in variants])
