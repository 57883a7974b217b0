"""Formats the tables and the report of the comparison of SGLang servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import truediv
from statistics import median
from typing import Any

from reason.bench.report import join_report
from reason.bench.servers import FIXED, NGRAM, OURS, PLAIN, RECURSIVE
from reason.runs.tables import ResultTable

REQUIRED_RATIO = 1.1
REQUIRED_SPEED = 0.97
REQUIRED_OF_FIXED = 0.95
FEW_BRANCHES = 4  # where drafting always pays, so that choosing the nodes must not cost what it wins

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
        _goal_table(f"Accepted length of {FIXED} over {NGRAM}'s", result["goals"]),
        _goal_table(f"Tokens per second of {OURS} over plain's", judge_speeds(runs)),
        _goal_table(f"Tokens per second of {OURS} over {FIXED}'s, few branches", judge_choices(runs)),
        _grid("Accepted length, by live branches", runs, _length_cell),
        _grid("Tokens per second relative to plain, by live branches", runs, _speed_cell),
        _grid("Tokens per second, by live branches", runs, lambda run: f"{run['tokens_per_s']:,.0f}"),
        _grid("Draft nodes of a request and round (rounds without drafts), by live branches", runs, _node_cell),
        _grid("Mean log-probability of the generated tokens", runs, _logprob_cell),
    ]


def judge_lengths(runs: Sequence[Row]) -> list[Row]:
    """Returns our accepted length over that of SGLang's n-grams, with as many nodes, for each number of live branches.

    >>> run = {"variant": "NGRAM", "live": 4, "accepted_length": 2.0}
    >>> judge_lengths([run, run | {"variant": "REASON-fixed", "accepted_length": 2.1}])
    [{'live': 4, 'ratio': 1.05, 'required': 1.1, 'verdict': 'short by 0.050'}]
    """
    lengths = {(run["variant"], run["live"]): run["accepted_length"] for run in runs}
    return [
        _judge(live, length / lengths[NGRAM, live], REQUIRED_RATIO)
        for (variant, live), length in lengths.items()
        if variant == FIXED and (NGRAM, live) in lengths
    ]


def judge_speeds(runs: Sequence[Row]) -> list[Row]:
    """Returns tokens per second of our adaptive server over those of plain decoding: drafting costs no throughput."""
    return [_judge(run["live"], run["speed"], REQUIRED_SPEED) for run in runs if run["variant"] == OURS]


def judge_choices(runs: Sequence[Row]) -> list[Row]:
    """Returns tokens per second of our adaptive server over those with a fixed number of nodes, for few branches.

    The ratio is the median over the repetitions; within each, both decoded the same samples.

    >>> run = {"variant": "REASON-fixed", "live": 4, "speeds": [2.0, 1.0]}
    >>> judge_choices([run, run | {"variant": "REASON", "speeds": [2.2, 0.9]}])
    [{'live': 4, 'ratio': 1.0, 'required': 0.95, 'verdict': 'PASS'}]
    """
    speeds = {(run["variant"], run["live"]): run["speeds"] for run in runs}
    return [
        _judge(live, median(map(truediv, adaptive, speeds[FIXED, live])), REQUIRED_OF_FIXED)
        for (variant, live), adaptive in speeds.items()
        if variant == OURS and live <= FEW_BRANCHES and (FIXED, live) in speeds
    ]


def _judge(live: int, ratio: float, required: float) -> Row:
    verdict = "PASS" if ratio >= required else f"short by {required - ratio:.3f}"
    return {"live": live, "ratio": ratio, "required": required, "verdict": verdict}


def format_report(result: Row, command: str) -> str:
    """Returns the report in Markdown."""
    variants = {run["variant"] for run in result["speed_runs"]}
    parts = [
        f"Bundled target, {result['problems']} held-out problems of {', '.join(result['families'])}, "
        f"{result['trajectories']} samples of each at temperature 1, at most {result['max_tokens']} tokens. Up to "
        f"{result['nodes'] - 1} draft tokens per branch and step (`--speculative-num-draft-tokens "
        f"{result['nodes']}`). Medians of {result['repeats']} repetitions with other samples; in each, every server "
        "decodes everything once, with an empty cache and empty draft tables, while the others are paused.",
        "Acceptance rules:",
        "\n".join(f"- {name}: {rule}" for name, rule in RULES.items() if name in variants),
        READING,
        *(table.markdown_section() for table in make_tables(result)),
    ]
    machine = {**result["machine"], "SGLang": result["sglang"]}
    title = "SGLang on a CPU: plain, its n-grams, our speculation"
    return join_report(title, command, parts, machine=machine, figures=result)


def _goal_table(title: str, goals: Sequence[Row]) -> ResultTable:
    rows = [[str(goal["live"]), f"{goal['required']:g}", f"{goal['ratio']:.3f}", goal["verdict"]] for goal in goals]
    return ResultTable(title, ["live", "required", "measured", "verdict"], rows)


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
