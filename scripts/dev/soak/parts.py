"""The parts of the soak as processes: each runs rounds, is watched for growth, and is killed where it hangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from child import Child
from gauges import GrowthWatch, read_gauges
from part_program import PartSettings, RoundReport

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PartProgram:
    """A part: its name, the command that runs it, and how many limits one round may take."""

    name: str
    command: Sequence[str | Path]
    num_limits: int = 3


PARTS = (
    PartProgram("kills", [FOLDER / "kills.py"], num_limits=8),  # it waits for one program after the other
    PartProgram("hostile", [FOLDER / "hostile.py"]),
    PartProgram("cancels", [FOLDER / "cancels.py"]),
    PartProgram("clients", [FOLDER / "clients.py"]),
)


class PartProcess:
    """A part program that is started when needed, and again after it hung or crashed."""

    def __init__(self, program: PartProgram, settings: PartSettings) -> None:
        self.name = program.name
        self._program, self._settings = program, settings
        self._round_limit_s = program.num_limits * settings.limit_s
        self._child: Child | None = None
        self._watch = GrowthWatch()
        self._num_started = 0

    def run_round(self, seed: int) -> RoundReport:
        """Runs one round. *Mutates*: starts the program; ends it where it hangs. Everything wrong is in the report."""
        child = self._child or self._start()
        answer = child.ask(str(seed), self._round_limit_s)
        if answer is None:
            child.dump_and_kill()
            self._child = None
            fault = f"the round has no end within {self._round_limit_s:g} s; the stacks are in {child.log}"
            return RoundReport(hung=[fault], leaked=child.find_remains(files=False))
        if not answer:
            self._child = None
            code = child.finish(self._settings.limit_s)
            return RoundReport(lost=[f"the part ended with {code}: {child.read_last_lines()}; see {child.log}"])
        report = RoundReport.from_json(answer)
        report.leaked += [f"the part's own process: {text}" for text in self._watch.find_growth(read_gauges(child.pid))]
        return report

    def close(self) -> RoundReport:
        """Ends the program; what is wrong with its end is in the report."""
        report = RoundReport()
        if self._child is None:
            return report
        self._child.end_input()
        code = self._child.finish(self._round_limit_s)
        if code is None:
            report.hung.append(f"the part does not end; the stacks are in {self._child.log}")
        elif code:
            report.lost.append(f"the part ended with {code}: {self._child.read_last_lines()}; see {self._child.log}")
        report.leaked += self._child.find_remains(files=code == 0)
        self._child = None
        return report

    def _start(self) -> Child:
        self._num_started += 1
        folder = self._settings.folder / f"{self.name}-{self._num_started}"
        command = [*self._program.command, *replace(self._settings, folder=folder).to_arguments()]
        self._child, self._watch = Child(command, folder / "log.txt", talks=True), GrowthWatch()
        return self._child
