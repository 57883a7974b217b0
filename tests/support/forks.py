"""Runs functions in forks of this process, for programs that `tests.reason.test_fork` starts.

Not for tests themselves: a fork of pytest would have its threads and its open files.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable

LIMIT_S = 240.0
"""A fork that needs longer hangs; a busy machine needs a minute to load the models and to solve."""


def run_in_fork(function: Callable[[], object], *, at_exit: Callable[[], object] | None = None) -> list[object]:
    """Runs `function` in a fork, which then ends as a program does: it leaves the caller's `with` blocks.

    Returns the text of its result or error, and its exit status; "hangs" and the number of the signal that killed it
    after `LIMIT_S`. `at_exit` runs here, while the fork may still be running.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        faulthandler.dump_traceback_later(LIMIT_S - 10)  # on standard error, which the test shows: where it hangs
        try:
            reply = str(function())
        except Exception as error:
            reply = f"{type(error).__name__}: {error}"
        os.write(writer, reply.encode())
        os.close(writer)
        sys.exit()
    os.close(writer)
    if at_exit is not None:
        at_exit()
    deadline = time.monotonic() + LIMIT_S
    replied = select.select([reader], [], [], LIMIT_S)[0]
    reply = os.read(reader, 100_000).decode() if replied else "hangs"
    os.close(reader)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return [reply, os.waitstatus_to_exitcode(status)]
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def print_outcomes(outcomes: dict[str, object]) -> None:
    """Prints what the test reads: one line of JSON, the last one."""
    print(json.dumps(outcomes), flush=True)
