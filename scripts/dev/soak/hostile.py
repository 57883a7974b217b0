"""Search over a hostile server beside a healthy one; the hostile one changes its behaviour while searches run.

Every problem must be answered, and closing in the midst of it must be quick. Started by soak.py.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager

from byte_model import write_byte_model
from child import Child
from limits import close_in_time, find_unfinished
from part_program import PartSettings, RoundReport, run_part

import reason
from reason import Problem, Solution, Solver

START_LIMIT_S = 120.0
ROUND_S = 10.0
PROBLEMS_AT_ONCE = 6
SETTINGS = (
    "model.prompt.raw='{question}'",
    "scorer=none",
    "search=self_consistency",
    "search.sampling.max_tokens=64",
    "search.sampling.stop=[zz]",  # with it, a server that does not say why a text ended is read as a stream
    "engine.request_timeout_s=4",
    "engine.idle_timeout_s=1",
    "engine.max_reply_mb=1",
    "engine.unavailable_timeout_s=60",
    "engine.cooldown_s=0.2",
    "engine.min_backoff_s=0.05",
    "engine.max_backoff_s=0.3",
)
OPENAI = ("engine=openai", "engine.model=toy", "engine.api=completions", "engine.logprobs=true")
ENGINES = {"openai": OPENAI, "openai-stream": OPENAI, "sglang": ("engine=sglang",)}
"""Further settings by the dialect that the servers speak."""


class HostileProgram:
    """A hostile server in a process of its own (`tests/support/hostile_program.py`)."""

    def __init__(self, dialect: str, name: str, settings: PartSettings) -> None:
        command = ["-m", "tests.support.hostile_program", dialect]
        self._child = Child(command, settings.folder / f"{name}-{dialect}.log", talks=True)
        greeting = self._child.read_line(START_LIMIT_S)
        if not greeting:
            raise RuntimeError(f"the hostile server did not start: {self._child.read_last_lines()}")
        start = json.loads(greeting)
        self.url: str = start["url"]
        self.behaviours: list[str] = start["behaviours"]

    def change_behaviour(self, name: str) -> int:
        """Changes the behaviour, which breaks all connections. Returns how many the server has had so far."""
        answer = self._child.ask(name, START_LIMIT_S)
        if not answer:
            raise RuntimeError(f"the hostile server is gone: {self._child.read_last_lines()}")
        return int(answer)

    def close(self) -> None:
        """Ends the server."""
        self._child.end_input()
        self._child.finish(START_LIMIT_S)


class HostileAttack:
    """Each round opens a solver over two servers of one dialect and closes it again; servers live for all rounds."""

    def __init__(self, settings: PartSettings, stack: ExitStack) -> None:
        self._settings = settings
        self._servers: dict[str, tuple[HostileProgram, HostileProgram]] = {}
        for dialect in ENGINES:
            both = HostileProgram(dialect, "sick", settings), HostileProgram(dialect, "healthy", settings)
            for server in both:
                stack.callback(server.close)
            self._servers[dialect] = both
        write_byte_model(settings.folder / "bytes")

    def run_round(self, seed: int, rng: random.Random) -> RoundReport:
        """Draws a dialect and behaviours, and searches for some seconds."""
        report = RoundReport()
        dialect = rng.choice(list(ENGINES))
        sick, healthy = self._servers[dialect]
        earlier = sick.change_behaviour("healthy")
        solver = self._load(dialect, rng.sample([sick.url, healthy.url], 2), rng)
        searches: dict[Future[Solution], str] = {}
        closes_early = rng.random() < 0.3
        end = time.monotonic() + ROUND_S * self._settings.scale
        behaviour = "healthy"
        try:
            while time.monotonic() < end:
                behaviour = rng.choice(sick.behaviours)
                sick.change_behaviour(behaviour)
                report.counts["behaviours"] += 1
                pause_end = time.monotonic() + rng.uniform(0.1, 1.5)
                while time.monotonic() < pause_end:
                    while sum(not search.done() for search in searches) < PROBLEMS_AT_ONCE:
                        problem = Problem(id=f"{seed}-{len(searches)}", question=f"What is {len(searches)}?")
                        searches[solver.submit(problem)] = behaviour
                    time.sleep(0.02)
            if not closes_early and (fault := find_unfinished(list(searches), self._settings.limit_s)):
                report.hung.append(f"{dialect}, last behaviour {behaviour}: {fault}")
        finally:
            close_in_time(solver, report)
        if fault := find_unfinished(list(searches), 1.0):
            report.hung.append(f"{dialect}, {behaviour}: after close() {fault}")
        report.counts["searches"] += len(searches)
        report.counts["connections"] += sick.change_behaviour("healthy") - earlier
        report.lost += [
            f"{dialect}, {name}: {fault}"
            for search, name in searches.items()
            if (fault := find_fault(search, may_be_cancelled=closes_early))
        ]
        return report

    def _load(self, dialect: str, urls: list[str], rng: random.Random) -> Solver:
        model = f"model.path={self._settings.folder / 'bytes'}"
        return reason.load(
            *ENGINES[dialect], model, *SETTINGS, f"engine.urls=[{','.join(urls)}]", f"search.n={rng.choice((1, 3, 8))}"
        )


def find_fault(search: Future[Solution], *, may_be_cancelled: bool) -> str:
    """Returns why a search has no answer; "" if it has one, or need not have one because the solver was closed."""
    if not search.done() or (search.cancelled() and may_be_cancelled):
        return ""  # the first is reported as hung
    if search.cancelled():
        return "cancelled"
    error = search.exception()
    if error is not None:
        return f"{type(error).__name__}: {error}"[:300]
    return "" if search.result().result.candidates else "no candidate"


@contextmanager
def open_attack(settings: PartSettings) -> Iterator[HostileAttack]:
    """Yields the attack; ends its servers."""
    with ExitStack() as stack:
        yield HostileAttack(settings, stack)


if __name__ == "__main__":
    run_part(open_attack)
