"""Plans the runs of a comparison, and gets each from the ledger, from its folder, or by running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from rich.console import Console

from reason.bench.ledger import Ledger
from reason.bench.runs import RunOutcome, RunSpec, execute_run, merge_seeds
from reason.config.errors import ConfigError

BASELINE_SHARE = 1.25
"""A search over steps writes a little more than as many samples, so the baseline has more samples than the widest."""


def plan_specs(
    searches: Sequence[str], widths: Sequence[int], baseline: int | None, common: tuple[str, ...]
) -> list[RunSpec]:
    """Returns all searches at all widths, and best-of-N at the width of the baseline.

    baseline   its samples; 0: only those of a best-of-N among the searches; None: 1.25 times the widest
    """
    specs = [RunSpec(search, width, common) for width in widths for search in searches]
    num_samples = ceil(BASELINE_SHARE * max(widths)) if baseline is None else baseline
    drawn = RunSpec("best_of_n", num_samples, common)
    return specs if num_samples == 0 or drawn in specs else [*specs, drawn]


def choose_goal(specs: Sequence[RunSpec], reach: tuple[str, int] | None, widths: Sequence[int]) -> RunSpec | None:
    """Returns the run whose accuracy is the goal of the others: the one asked for, or the widest best-of-N.

    Of best-of-N the widths of the searches are preferred to that of the baseline.

    Raises: ConfigError if the run asked for is not among them.
    """
    if reach is not None:
        named = [spec for spec in specs if (spec.search, spec.width) == reach]
        if not named:
            raise ConfigError(f"--reach {reach[0]}:{reach[1]} is none of the runs; add it to --searches and --widths")
        return named[0]
    samples = [spec for spec in specs if spec.search == "best_of_n"]
    return max(samples, key=lambda spec: (spec.width in widths, spec.width), default=None)


@dataclass(frozen=True)
class RunSource:
    """Gets runs of one or more seeds.

    folder    has a folder for each run
    ledger    is read first, and gets each run that is finished
    machine   this one, for the ledger
    """

    folder: Path
    ledger: Ledger | None
    seeds: Sequence[int | None]
    machine: Mapping[str, object]
    console: Console

    def list_runs(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """Returns the runs of these searches, one for each seed."""
        return [replace(spec, seed=seed) for spec in specs for seed in self.seeds]

    def execute(self, spec: RunSpec, num_problems: int) -> RunOutcome:
        """Returns a search on the first problems, with a row per seed and problem. *Mutates* folder and ledger."""
        self.console.print(f"{spec.label}: {num_problems} problems", style="bold", markup=False)
        return merge_seeds([self._execute_seed(run, num_problems) for run in self.list_runs([spec])])

    def find_missing(self, spec: RunSpec, num_problems: int) -> str | None:
        """Returns which runs of a search the ledger lacks, in words; None if it has all."""
        assert self.ledger is not None
        lacking = [run for run in self.list_runs([spec]) if self.ledger.find(run, num_problems) is None]
        seeds = ", ".join(str(run.seed) for run in lacking if run.seed is not None)
        return (f"{spec.label}, seeds {seeds}" if seeds else spec.label) if lacking else None

    def _execute_seed(self, run: RunSpec, num_problems: int) -> RunOutcome:
        if self.ledger is None:
            return execute_run(run, self.folder / run.folder_name, self.console, num_problems=num_problems)
        if (finished := self.ledger.find(run, num_problems)) is not None:
            return finished
        outcome = execute_run(run, self.folder / run.folder_name, self.console, num_problems=num_problems)
        self.ledger.add(outcome, self.machine, has_all=len(outcome.rows) < num_problems)
        finished = self.ledger.find(run, num_problems)  # so that a report has the same numbers today and tomorrow
        assert finished is not None
        return replace(finished, timeline=outcome.timeline)
