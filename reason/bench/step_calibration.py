"""Measures how well the step scores of a run say which beginnings of solutions are correct, and what each aggregation
makes of its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from statistics import fmean

import numpy as np

from reason.problem import Problem
from reason.runs.json_files import parse_json, safe_file_name
from reason.runs.result import ResultFile, SampleResult
from reason.runs.run import RESULTS, TREES
from search.tree import SearchTree
from search.voting import AGGREGATIONS, aggregate_scores, tally_votes

StepCheck = Callable[[str], bool | None]


@dataclass(frozen=True)
class ScoredSolution:
    """A sample of a problem.

    nodes   its steps in the tree
    scores  of each step; None: not scored
    checks  of each step, whether the path is correct up to its end; None: the step is not complete. The last one, which
            may end without a delimiter, is correct if the steps before it and the answer are
    """

    answer: str | None
    is_right: bool
    nodes: tuple[int, ...]
    scores: tuple[float | None, ...]
    checks: tuple[bool | None, ...]

    @property
    def is_correct(self) -> bool:
        """Whether the answer is right by correct steps, not by luck."""
        return self.is_right and self.checks[-1] is True

    def fold_scores(self, fold: str) -> float | None:
        """Returns the aggregated score of the whole solution; None where its last step has none."""
        scores = [score for score in self.scores if score is not None]
        return None if not scores or self.scores[-1] is None else aggregate_scores(scores, fold)


@dataclass(frozen=True)
class ScoredStep:
    """A complete step: the scores of its path up to it, and whether that path is correct so far."""

    problem: str
    scores: tuple[float, ...]
    is_correct: bool

    @property
    def depth(self) -> int:
        """Number of the step, from 1."""
        return len(self.scores)


@dataclass(frozen=True)
class Reliability:
    """How well scores agree with what is correct.

    calibration_error  expected calibration error: mean distance between score and share correct, over bins
    auc                chance that a correct step has a higher score than a wrong one; None without one of either kind
    auc_within         the same for two steps of one problem at one depth, between which a search chooses
    """

    num_steps: int
    share_correct: float
    mean_score: float
    calibration_error: float
    auc: float | None
    auc_within: float | None


@dataclass(frozen=True)
class Bin:
    """Scores between two bounds, both included."""

    lowest: float
    highest: float
    num_steps: int
    mean_score: float
    share_correct: float


@dataclass(frozen=True)
class FoldQuality:
    """Share of the problems that are right by each choice among their samples."""

    best: float
    weighted: float
    auc_within: float | None


def read_solutions(folder: Path, problems: Iterable[Problem]) -> dict[str, list[ScoredSolution]]:
    """Returns the samples of each problem of a run that has any, with the scores of its trees.

    Raises: ValueError where the steps of a problem cannot be checked.
    """
    by_id = {problem.id: problem for problem in problems}
    solutions = {}
    for row in ResultFile(folder / RESULTS).read_results().values():
        check_prefix = by_id[row.id].check_prefix if row.id in by_id else None
        if check_prefix is None:
            raise ValueError(f"{folder}: the steps of {row.id} cannot be checked; +task=synthetic has a step checker")
        if row.samples:
            tree = SearchTree.from_dict(parse_json((folder / TREES / f"{safe_file_name(row.id)}.json").read_bytes()))
            solutions[row.id] = [_read_solution(tree, sample, check_prefix) for sample in row.samples]
    return solutions


def _read_solution(tree: SearchTree, sample: SampleResult, check_prefix: StepCheck) -> ScoredSolution:
    nodes, is_right = tuple(tree.path_nodes(sample.node)), sample.grade == "right"
    checks = [check_prefix(text) for text in accumulate(tree.nodes[node].step.text for node in nodes)]
    if checks[-1] is None and sample.answer is not None:
        checks[-1] = is_right
    return ScoredSolution(
        sample.answer, is_right, nodes, tuple(tree.nodes[node].score for node in nodes), tuple(checks)
    )


def list_steps(solutions: Mapping[str, Sequence[ScoredSolution]]) -> list[ScoredStep]:
    """Returns the complete and scored steps, one that several solutions share once.

    Raises: ValueError if there are none.
    """
    steps = {}
    for problem, samples in solutions.items():
        for solution in samples:
            for number, (node, is_correct) in enumerate(zip(solution.nodes, solution.checks, strict=True), 1):
                scores = tuple(score for score in solution.scores[:number] if score is not None)
                if is_correct is not None and len(scores) == number:
                    steps[problem, node] = ScoredStep(problem, scores, is_correct)
    if not steps:
        raise ValueError("no step of the samples has a score; make the run with a scorer of steps")
    return list(steps.values())


def rate_reliability(steps: Sequence[ScoredStep], fold: str = "last", num_bins: int = 10) -> Reliability:
    """Rates the scores of paths, aggregated by `fold`, over `num_bins` bins of equal width from 0 to 1."""
    scores = np.array([aggregate_scores(step.scores, fold) for step in steps])
    correct = np.array([step.is_correct for step in steps])
    bins = np.minimum((scores * num_bins).astype(int), num_bins - 1)
    error = sum(abs(scores[bins == i].mean() - correct[bins == i].mean()) * (bins == i).mean() for i in np.unique(bins))
    return Reliability(
        len(steps), float(correct.mean()), float(scores.mean()), float(error), _auc([(scores, correct)]),
        rate_order(steps, fold),
    )  # fmt: skip


def rate_order(steps: Sequence[ScoredStep], fold: str) -> float | None:
    """Returns the AUC over pairs of steps of one problem at one depth."""

    def place(step: ScoredStep) -> tuple[str, int]:
        return step.problem, step.depth

    groups = [list(group) for _, group in groupby(sorted(steps, key=place), key=place)]
    return _auc(
        (np.array([aggregate_scores(step.scores, fold) for step in group]), np.array([s.is_correct for s in group]))
        for group in groups
    )


def fill_bins(steps: Sequence[ScoredStep], num_bins: int = 10) -> list[Bin]:
    """Returns bins with about as many steps each, by rising score of the last step."""
    ordered = sorted(steps, key=lambda step: step.scores[-1])
    cuts = [round(i * len(ordered) / num_bins) for i in range(num_bins + 1)]
    parts = [part for start, end in pairwise(cuts) if (part := ordered[start:end])]
    return [
        Bin(
            part[0].scores[-1], part[-1].scores[-1], len(part), fmean(step.scores[-1] for step in part),
            fmean(step.is_correct for step in part),
        )
        for part in parts
    ]  # fmt: skip


def rate_folds(
    solutions: Mapping[str, Sequence[ScoredSolution]], steps: Sequence[ScoredStep]
) -> dict[str, FoldQuality]:
    """Rates each aggregation: best-of-N and the weighted vote over all samples of each problem."""
    return {
        fold: FoldQuality(
            best=fmean(choose_right(samples, "best", fold) for samples in solutions.values()),
            weighted=fmean(choose_right(samples, "weighted", fold) for samples in solutions.values()),
            auc_within=rate_order(steps, fold),
        )
        for fold in AGGREGATIONS
    }


def choose_right(samples: Sequence[ScoredSolution], rule: str, fold: str = "last") -> bool:
    """Whether the answer that a vote chooses is right."""
    votes = tally_votes([sample.answer for sample in samples], [sample.fold_scores(fold) for sample in samples], rule)
    chosen = max(votes, key=lambda answer: votes[answer], default=None)
    return any(sample.is_right for sample in samples if sample.answer is not None and sample.answer == chosen)


def _auc(groups: Iterable[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Returns the share of pairs, a correct and a wrong one of a group, that are in order; equal ones count half."""
    pairs = in_order = 0.0
    for scores, correct in groups:
        wrong = np.sort(scores[~correct])
        below = np.searchsorted(wrong, scores[correct], "left") + np.searchsorted(wrong, scores[correct], "right")
        in_order += below.sum() / 2
        pairs += len(wrong) * correct.sum()
    return in_order / pairs if pairs else None


def standard_error(share: float, count: int) -> float:
    """Returns the standard error of a share of `count` problems."""
    return math.sqrt(share * (1 - share) / count)
