"""Time limits within a process: of searches that were started, and of closing a solver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait

from part_program import CLOSE_LIMIT_S, RoundReport

from reason import Solution, Solver


def find_unfinished(futures: Sequence[Future[Solution]], limit_s: float) -> str:
    """Waits for searches, and returns how many are not done; "" if all are."""
    left = wait(futures, limit_s).not_done
    return f"{len(left)} of {len(futures)} searches have no end within {limit_s:g} s" if left else ""


def close_in_time(solver: Solver, report: RoundReport) -> None:
    """Closes a solver. *Mutates* the report: it is a fault if that takes longer than `CLOSE_LIMIT_S`.

    Where it takes for ever the round does, too, and soak.py has the stacks written.
    """
    began = time.monotonic()
    solver.close()
    seconds = time.monotonic() - began
    if seconds > CLOSE_LIMIT_S:
        report.hung.append(f"close() took {seconds:.1f} s")


async def count_other_tasks() -> int:
    """Returns the number of tasks on this event loop without the one that counts."""
    return len(asyncio.all_tasks()) - 1
