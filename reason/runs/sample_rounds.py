"""Writes the samples of a run in rounds, as its allocation plans them; each round goes on from what is on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from reason.problem import Problem, Solution
from reason.runs.allocation import GivenSamples, SampleAllocation
from reason.runs.json_files import parse_json, safe_file_name
from reason.runs.output_folder import OutputFolder
from reason.runs.pages.records import TreeRecord
from reason.runs.result import ProblemResult
from reason.solver import Solver
from search.strategies.self_consistency import SelfConsistency
from search.strategy import Candidate, EarlierSamples
from search.tree import SearchTree

ALLOCATED = "allocated"
"""Key of rows and saved trees: the number of samples that the problem was given."""


@dataclass(frozen=True)
class SampleRounds:
    """Plans rounds from the rows of a run, and starts the problems of a round.

    trees  folder with the saved tree of each problem

    Raises: ValueError for a strategy that cannot go on from earlier samples.
    """

    allocation: SampleAllocation
    solver: Solver
    trees: Path

    def __post_init__(self) -> None:
        require_divisible(self.solver.strategy)

    @property
    def strategy(self) -> SelfConsistency:
        """The strategy of the run; its `n` is the most samples of one problem."""
        return require_divisible(self.solver.strategy)

    def plan_round(self, problems: Sequence[Problem], results: Mapping[str, ProblemResult]) -> dict[str, int]:
        """Returns how many samples each problem of the next round is to have, by id; empty where the run is over."""
        given = [describe_samples(results.get(problem.id)) for problem in problems]
        targets = self.allocation.plan_samples(given, self.strategy.n, self.strategy.stop_error)
        return {
            problem.id: target
            for problem, target, so_far in zip(problems, targets, given, strict=True)
            if target > so_far.num_samples and not so_far.is_closed
        }

    def submit(self, problem: Problem, num_samples: int, row: ProblemResult | None) -> Future[Solution]:
        """Starts the search for the samples of a problem that are missing until it has so many."""
        strategy = replace(self.strategy, n=num_samples, stop_error=None)
        earlier = None if row is None or row.error is not None else self._read_samples(row)
        return self.solver.with_options(strategy=strategy).submit(problem, earlier)

    def _read_samples(self, row: ProblemResult) -> EarlierSamples | None:
        """Returns the samples of a saved tree; None where it is not there, or not that of the row.

        A process that was killed between tree and row leaves a newer tree. The problem then starts anew.
        """
        name = f"{safe_file_name(row.id)}.json"
        data = OutputFolder(self.trees).read(name)
        if data is None:
            return None
        try:
            record: TreeRecord = parse_json(data)
            if record.get("allocated") != count_allocated(row):
                return None
            return EarlierSamples(
                tree=SearchTree.from_dict(record),
                candidates=tuple(Candidate(c["node"], c["answer"], c["score"]) for c in record["candidates"]),
                usage=row.usage,
                num_requests=count_allocated(row),
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"{self.trees / name}: not a tree ({type(error).__name__}: {error}); delete it, and its problem "
                "is solved anew"
            ) from None


def require_divisible(strategy: object) -> SelfConsistency:
    """Returns the strategy if its samples can be divided among problems. Raises: ValueError saying what can be."""
    if not isinstance(strategy, SelfConsistency) or not strategy.continues_samples:
        raise ValueError(
            "allocation.samples needs search=self_consistency with select=majority, keep=1 and drop_percentile=null: "
            "it gives samples where the count of the answers is open"
        )
    return strategy


def describe_samples(row: ProblemResult | None) -> GivenSamples:
    """Returns what the row of a problem says of its samples."""
    if row is None:
        return GivenSamples()
    is_closed = row.error is not None or row.stopped == "budget"
    return GivenSamples([sample.answer for sample in row.samples], count_allocated(row), is_closed)


def mark_failed_round(row: ProblemResult, error: Exception) -> ProblemResult:
    """Returns the row of a problem whose next round has failed: with the samples of the rounds before."""
    return replace(row, stopped="error", error=f"{type(error).__name__}: {error}")


def drop_failed_round(row: ProblemResult) -> ProblemResult:
    """Returns a row without the failure of its last round, which may then be tried again."""
    return replace(row, stopped="done", error=None)


def count_allocated(row: ProblemResult) -> int:
    """Returns how many samples a problem was given; 0 in a run that divides none."""
    count = row.metadata.get(ALLOCATED, 0)
    if not isinstance(count, int):
        raise ValueError(f"{ALLOCATED} of problem {row.id} must be an int, got {count!r}")
    return count
