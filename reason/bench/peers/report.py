"""Formats the tables and the report of the comparison with other engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from reason.bench.peers.comparison import Clock, GreedyAgreement, PeerComparison
from reason.bench.peers.installed import OURS
from reason.bench.peers.limits import WorkloadLimit
from reason.bench.report import join_report
from reason.runs.tables import ResultTable


@dataclass(frozen=True)
class PeerReport:
    """What was compared: runs and limits by workload, greedy texts, engines with and without a description.

    machine      what is known of it, and of the versions of the libraries
    missing      engines that are not installed, with what to install
    """

    model: str
    rounds: int
    threads: int
    machine: Mapping[str, object]
    descriptions: Mapping[str, str]
    missing: Mapping[str, str]
    agreements: Mapping[str, GreedyAgreement]
    comparisons: Sequence[PeerComparison] = field(default_factory=tuple)
    limits: Sequence[WorkloadLimit] = field(default_factory=tuple)

    def tables(self) -> list[ResultTable]:
        """Returns the tables: ratios of wall and CPU seconds, distance to the roofline, greedy texts."""
        return [
            self._ratio_table("Wall seconds: theirs over ours, above 1 the local engine is faster", "wall"),
            self._ratio_table("CPU seconds of the process: theirs over ours", "cpu"),
            self._limit_table(),
            self._greedy_table(),
        ]

    def _ratio_table(self, title: str, clock: Clock) -> ResultTable:
        others = [name for name in self.descriptions if name != OURS]
        rows = [
            [
                str(comparison.workload.branches),
                str(comparison.quartiles(OURS, clock)),
                *(str(comparison.ratios(name, clock)) for name in others),
            ]
            for comparison in self.comparisons
        ]
        return ResultTable(f"{title}: median (quartiles)", ["branches", "ours, s", *others], rows)

    def _limit_table(self) -> ResultTable:
        rows = [
            [
                str(comparison.workload.branches),
                f"{1e3 * limit.round_s:.3f} ({limit.bound})",
                f"{1e3 * limit.prompt_s:.1f}",
                f"{limit.seconds:.3f}",
                *(f"{comparison.quartiles(name, 'wall').median / limit.seconds:.1f}x" for name in self.descriptions),
            ]
            for comparison, limit in zip(self.comparisons, self.limits, strict=True)
        ]
        header = ["branches", "round, ms", "prompt, ms", "all, s", *self.descriptions]
        return ResultTable("The roofline of this machine, and wall seconds over it", header, rows)

    def _greedy_table(self) -> ResultTable:
        rows = [[name, str(agreement)] for name, agreement in self.agreements.items()]
        return ResultTable("Greedy tokens equal to ours before the first that differs", ["engine", "tokens"], rows)

    def to_json(self) -> dict[str, object]:
        """Returns all figures, as the JSON line has them."""
        clocks: tuple[Clock, Clock] = ("wall", "cpu")
        points = [
            {
                "branches": comparison.workload.branches,
                "prompt": len(comparison.workload.prompt),
                "new": comparison.workload.new,
                "roofline_s": limit.seconds,
                **{
                    clock: {
                        name: {
                            "seconds": vars(comparison.quartiles(name, clock)),
                            "over_ours": vars(comparison.ratios(name, clock)),
                        }
                        for name in comparison.runs
                    }
                    for clock in clocks
                },
            }
            for comparison, limit in zip(self.comparisons, self.limits, strict=True)
        ]
        return {
            "bench": "peers",
            "model": self.model,
            "rounds": self.rounds,
            "threads": self.threads,
            "machine": self.machine,
            "engines": self.descriptions,
            "missing": self.missing,
            "greedy": {name: vars(agreement) for name, agreement in self.agreements.items()},
            "points": points,
        }

    def print_tables(self, console: Console) -> None:
        """Prints the tables, and what is not installed."""
        for table in self.tables():
            table.print_table(console)
        for name, advice in self.missing.items():
            console.print(f"{name}: {advice}", highlight=False)

    def to_markdown(self, command: str) -> str:
        """Returns the report: command, machine, engines, how it was measured, tables, and the JSON line."""
        workload = self.comparisons[0].workload
        about = [f"- {name}: {text}" for name, text in (*self.descriptions.items(), *self.missing.items())]
        parts = [
            "\n".join(about),
            f"One prompt of {len(workload.prompt)} tokens, {workload.new} new tokens per branch at temperature 1, none "
            f"ends early; model {self.model}, the same ids for every engine; threads: {self.threads}. Rounds: "
            f"{self.rounds}, in each of which every engine runs every workload once; a ratio is of two runs in the "
            "same round. Loading the model, and room for keys and values, are not timed.",
            "The roofline is the larger of two times: the products of a round at the rate that torch reaches with "
            "weights in the caches, and its bytes (weights, shared and private keys and values, once each) at the "
            "measured bandwidth; `all` is that of the prompt, read once, and of the rounds.",
            *(table.markdown_section() for table in self.tables()),
        ]
        title = "The local engine beside others on a CPU"
        return join_report(title, command, parts, machine=self.machine, figures=self.to_json())
