"""Kill runs of solve.py at random moments and resume them, sometimes twice at once, until they are done.

The rows must be those of an undisturbed run. Started by soak.py.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from child import Child
from part_program import ROOT, PartSettings, RoundReport, run_part
from rows import Row, compare_rows, read_rows

SCRIPT = ROOT / "scripts" / "solve.py"
NUM_PROBLEMS, MAX_KILLS = 4, 4
TASK = ("+task=synthetic", "search.sampling.max_tokens=60", "engine.kv_mib=64")
VARIANTS = (
    ("search.n=3", "concurrency=2"),
    ("search=self_consistency", "search.n=4", "concurrency=4"),
    ("search=beam_search", "search.n=4", "concurrency=1"),
    ("search=rebase", "search.n=4", "concurrency=3"),
    ("search=mcts", "search.n=3", "speculation=off"),
    ("search=ets", "search.n=4", "engine.dtype=float64"),
    ("search.n=3", "scorer=likelihood", "speculation=prompt_lookup", "engine.dtype=float64"),
)
"""Settings of runs; one of them is drawn for each round."""

CODES: dict[signal.Signals | None, tuple[int, ...]] = {
    None: (0,),
    signal.SIGKILL: (0, -9),
    # before the program handles signals, while it imports, they end it as they end any
    signal.SIGTERM: (0, 130, -15),
    signal.SIGINT: (0, 130, -2),
}
"""Exit codes that are right after each signal."""

AGED_S = 3600.0
"""What a run leaves half-written is removed by a later one once it is this old (`reason/runs/output_folder.py`)."""


class KillAttack:
    """Kills and resumes a run in each round; undisturbed runs are kept for comparison, one per variant."""

    def __init__(self, settings: PartSettings) -> None:
        self._folder, self._limit_s = settings.folder, settings.limit_s
        self._task = [*TASK, f"task.size={settings.scale_count(NUM_PROBLEMS)}"]
        self._max_kills = settings.scale_count(MAX_KILLS)
        self._undisturbed: dict[tuple[str, ...], tuple[list[Row], float]] = {}
        self._num_started = 0

    def run_round(self, seed: int, rng: random.Random) -> RoundReport:
        """Draws settings, kills a run with them up to four times, lets it finish, and compares."""
        report = RoundReport()
        variant = rng.choice(VARIANTS)
        plan = random.Random(rng.random())
        if variant not in self._undisturbed:
            began = time.monotonic()
            run = self._folder / f"undisturbed-{len(self._undisturbed)}"
            self._finish(self._start(run, variant), None, report)
            if report.lost or report.hung:
                return report
            self._undisturbed[variant] = read_rows(run / "results.jsonl"), time.monotonic() - began
        expected, seconds = self._undisturbed[variant]
        run = self._folder / f"round-{seed}"
        for _ in range(plan.randint(1, self._max_kills)):
            self._disturb(run, variant, seconds, plan, report)
        self._finish(self._start(run, variant), None, report)
        report.counts["runs"] += 1
        report.lost += self._check(run, expected, report)
        self._check_leftovers(run, variant, report)
        report.lost = [f"{fault} ({' '.join(variant)}; {run})" for fault in report.lost]
        if not any(report.faults()):
            shutil.rmtree(run)
        return report

    def _disturb(
        self, run: Path, variant: tuple[str, ...], seconds: float, rng: random.Random, report: RoundReport
    ) -> None:
        """Starts or resumes the run, once or twice at once, and kills what it started after a random time."""
        (how,) = rng.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (6, 2, 2))
        delay_s = rng.uniform(0.0, 1.0) * seconds
        twice, spared = rng.random() < 0.3, rng.random() < 0.3
        children = [self._start(run, variant)]
        if twice and is_resumable(run):
            children.append(self._start(run, variant))
            report.counts["double resumes"] += 1
        end = time.monotonic() + delay_s
        while time.monotonic() < end and not all(child.has_ended for child in children):
            time.sleep(0.01)
        if len(children) == 2 and spared:
            self._finish(children.pop(), None, report)
        for child in children:
            if not child.has_ended:
                child.send_signal(how)
                report.counts[how.name] += 1
        for child in children:
            self._finish(child, how, report)

    def _start(self, run: Path, variant: tuple[str, ...]) -> Child:
        self._num_started += 1
        settings = [f"resume={run}"] if is_resumable(run) else [*self._task, *variant, f"hydra.run.dir={run}"]
        return Child([SCRIPT, *settings], self._folder / "logs" / f"{run.name}-{self._num_started}.log")

    def _finish(self, child: Child, how: signal.Signals | None, report: RoundReport) -> None:
        code = child.finish(self._limit_s)
        if code is None:
            report.hung.append(f"solve.py after {how.name if how else 'no signal'}: stacks in {child.log}")
        elif code not in CODES[how]:
            report.lost.append(f"solve.py ended with {code}: {child.read_last_lines()}")
        report.leaked += child.find_remains(files=how is not signal.SIGKILL and code == 0)

    def _check(self, run: Path, expected: list[Row], report: RoundReport) -> Iterator[str]:
        """Yields what is wrong with the folder of a finished run."""
        try:
            rows = read_rows(run / "results.jsonl")
            summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
            trees = [json.loads(file.read_text(encoding="utf-8")) for file in (run / "trees").glob("*.json")]
        except (OSError, ValueError) as error:
            yield f"{type(error).__name__}: {error}"
            return
        report.counts["rows"] += len(rows)
        yield from compare_rows(expected, rows)
        if (summary["stopped"], summary["problems"]) != ("done", len(expected)):
            yield f"the summary says {summary['stopped']}, {summary['problems']} of {len(expected)} problems"
        if {tree["id"] for tree in trees} != {row["id"] for row in expected}:
            yield f"{len(trees)} trees of {len(expected)} problems"
        if len(list((run / "pages").glob("*.html"))) != len(expected) or not (run / "index.html").is_file():
            yield "a page is missing"

    def _check_leftovers(self, run: Path, variant: tuple[str, ...], report: RoundReport) -> None:
        """Files that a killed process left half-written must go as soon as they are old."""
        left = list(run.rglob("*.part"))
        if not left:
            return
        report.counts["half-written files"] += len(left)
        aged = time.time() - AGED_S
        for file in left:
            os.utime(file, (aged, aged))
        self._finish(self._start(run, variant), None, report)
        report.leaked += [f"{file} stays" for file in left if file.exists()]


def is_resumable(run: Path) -> bool:
    """Whether a run got so far that it can be resumed; one that was killed earlier is started again."""
    return (run / "run.json").exists()


@contextmanager
def open_attack(settings: PartSettings) -> Iterator[KillAttack]:
    """Yields the attack."""
    yield KillAttack(settings)


if __name__ == "__main__":
    run_part(open_attack)
