"""Compares searches with thoughts by themselves at equal tokens: one long thought, or a vote of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

import numpy as np

from reason.bench.problem_values import Floats, correct_answers, tokens_per_problem
from reason.bench.report import join_report
from reason.bench.runs import RunOutcome, RunSpec
from reason.runs.metrics import (
    GradedSample,
    MetricRule,
    PairedDifference,
    avg_at_n,
    maj_at_n,
    mean_over_subsets,
    paired_bootstrap,
)
from reason.runs.tables import format_markdown


@dataclass(frozen=True)
class ComparedSearch:
    """A search at one width, all seeds together. `correct` has each problem's mean over the seeds, `[P]`."""

    search: str
    width: int
    correct: Floats
    tokens: float


@dataclass(frozen=True)
class ThoughtPool:
    """Independent thoughts of the same settings: per problem those of all seeds. `tokens` are those of one thought."""

    settings: str
    samples: list[list[GradedSample]]
    tokens: float

    @property
    def width(self) -> int:
        """The thoughts of a problem; one that failed has none."""
        return max([1, *map(len, self.samples)])

    def values_of(self, rule: MetricRule, size: int) -> Floats:
        """Returns the expected value of a rule over so many of the thoughts, for each problem, `[P]`."""
        return np.array([mean_over_subsets(samples, rule, size) for samples in self.samples], dtype=np.float64)


@dataclass(frozen=True)
class Opponent:
    """What a search is compared with: `values` of the same problems, `[P]`, bought with `tokens` per problem."""

    name: str
    values: Floats
    tokens: float


def plan_runs(
    searches: Sequence[str], widths: Sequence[int], seeds: Sequence[int], common: tuple[str, ...]
) -> dict[RunSpec, tuple[str, int]]:
    """Returns the runs of searches, each with its search and its width."""
    return {
        RunSpec(f"{search} seed={seed}", width, common): (search, width)
        for search in searches
        for width in widths
        for seed in seeds
    }


def join_seeds(outcomes: Mapping[RunSpec, RunOutcome], runs: Mapping[RunSpec, tuple[str, int]]) -> list[ComparedSearch]:
    """Returns one `ComparedSearch` per search and width."""
    grouped: dict[tuple[str, int], list[RunOutcome]] = {}
    for spec, key in runs.items():
        grouped.setdefault(key, []).append(outcomes[spec])
    return [
        ComparedSearch(
            search,
            width,
            np.mean([correct_answers(outcome.rows) for outcome in group], axis=0),
            fmean(tokens_per_problem(outcome) for outcome in group),
        )
        for (search, width), group in grouped.items()
    ]


def pool_thoughts(settings: str, outcomes: Sequence[RunOutcome], width: int) -> ThoughtPool:
    """Joins the samples of runs that differ in their seeds, `width` thoughts a problem each."""
    pooled: list[list[GradedSample]] = [[] for _ in outcomes[0].rows]
    for outcome in outcomes:
        for samples, row in zip(pooled, outcome.rows, strict=True):
            samples.extend(row.graded_samples)
    return ThoughtPool(settings, pooled, fmean(tokens_per_problem(outcome) for outcome in outcomes) / width)


def choose_opponents(run: ComparedSearch, pools: Sequence[ThoughtPool]) -> list[Opponent]:
    """Returns what `run` is compared with.

    First the single thought at equal tokens: the most accurate one of those with at least as many tokens, or, where
    there are none, the one with the most tokens. Then the most accurate single thought at whatever tokens. Then the
    most accurate vote of as many thoughts as the run's tokens buy, rounded up.
    """
    singles = [Opponent(_name(pool), pool.values_of(avg_at_n, 1), pool.tokens) for pool in pools]
    longer = [single for single in singles if single.tokens >= run.tokens]
    equal = max(longer, key=_accuracy) if longer else max(singles, key=lambda single: single.tokens)
    votes = []
    for pool in pools:
        size = min(math.ceil(run.tokens / pool.tokens), pool.width)
        votes.append(Opponent(f"{size} of {_name(pool)}", pool.values_of(maj_at_n, size), size * pool.tokens))
    return [equal, max(singles, key=_accuracy), max(votes, key=_accuracy)]


def format_singles(
    runs: Sequence[ComparedSearch],
    pools: Sequence[ThoughtPool],
    *,
    command: str,
    machine: Mapping[str, object],
    num_seeds: int,
) -> str:
    """Returns the report in Markdown."""
    num_problems = len(runs[0].correct)
    compared = [(run, choose_opponents(run, pools)) for run in runs]
    heads = ["one thought at equal tokens", "the best one thought", "a vote at equal tokens"]
    parts = [
        f"{num_problems} problems, the same for all rows, {num_seeds} seeds; ± is a standard error over problems, each "
        "of which counts with its mean over seeds. Tokens are per problem, all drafts and probes included.",
        "## Thoughts by themselves",
        format_markdown(["settings", "thoughts a problem", "right", "tokens"], [_pool_cells(pool) for pool in pools]),
        "## Searches",
        format_markdown(
            ["search", "width", "right", "tokens", *heads],
            [
                [run.search, str(run.width), _with_error(run.correct), f"{run.tokens:,.0f}"]
                + [_compare_cells(run, opponent) for opponent in opponents]
                for run, opponents in compared
            ],
        ),
        "A cell says how far the search is ahead, in points, with the 95 % interval of a paired bootstrap over "
        "problems; then of what, how accurate that is, and its tokens. *At equal tokens* means at least as many as the "
        "search has, or, where no thought is so long, the most. Of several the most accurate is taken, which favours "
        "it. *A vote* is over as many thoughts as the search's tokens buy, rounded up.",
    ]
    figures = {"machine": dict(machine), "searches": [_to_json(*each) for each in compared]}
    title = "Searches against thoughts by themselves, at equal tokens"
    return join_report(title, command, parts, machine=machine, figures=figures)


def _pool_cells(pool: ThoughtPool) -> list[str]:
    right = _with_error(pool.values_of(avg_at_n, 1))
    return [_name(pool), str(pool.width), right, f"{pool.tokens:,.0f}"]


def _compare_cells(run: ComparedSearch, opponent: Opponent) -> str:
    difference = paired_bootstrap(run.correct, opponent.values)
    return f"{_points(difference)} to {_accuracy(opponent):.3f} of {opponent.name} ({opponent.tokens:,.0f} tokens)"


def _to_json(run: ComparedSearch, opponents: Sequence[Opponent]) -> dict[str, object]:
    return {
        "search": run.search,
        "width": run.width,
        "accuracy": float(run.correct.mean()),
        "tokens": run.tokens,
        "problems": len(run.correct),
        "opponents": [
            {
                "name": opponent.name,
                "accuracy": _accuracy(opponent),
                "tokens": opponent.tokens,
                **asdict(paired_bootstrap(run.correct, opponent.values)),
            }
            for opponent in opponents
        ],
    }


def _name(pool: ThoughtPool) -> str:
    return pool.settings or "plain"


def _accuracy(opponent: Opponent) -> float:
    return float(opponent.values.mean())


def _points(difference: PairedDifference) -> str:
    low, high = 100 * difference.low, 100 * difference.high
    return f"{100 * difference.value:+.1f} ({low:+.1f} to {high:+.1f})"


def _with_error(values: Floats) -> str:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{values.mean():.3f} ± {error:.3f}"
