"""Runs a child process that compares answers, and kills it when it takes too long.

It is an ordinary program started with `subprocess`, not a `multiprocessing` child: nothing of the
caller's `__main__` is imported again, so it works from scripts without an import guard, notebooks,
`python -c` and threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
START_TIMEOUT_S = 120.0  # importing sympy on a busy machine


class WorkerTimeout(Exception):
    """No reply in time; the process has been killed."""


class WorkerDied(Exception):
    """The process ended without a reply."""


class WorkerProcess:
    """One running worker. Not thread-safe: one `compare_answers` at a time.

    Raises: WorkerDied when the worker cannot start, saying why.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.owner = os.getpid()  # a forked copy must not use or end the parent's process
        command = [sys.executable, "-P", str(WORKER), json.dumps(sys.path), str(int(timeout_s) + 10)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            env={**os.environ, "PYTHONHASHSEED": "0"},  # sympy orders by hash: the same grade in every run
            start_new_session=True,  # Ctrl-C is for the parent
        )
        try:
            hello = self._reply(START_TIMEOUT_S)
        except BaseException:
            self.stop_process()
            raise
        if "ready" not in hello:
            self.stop_process()
            raise WorkerDied(f"the grading worker cannot start: {hello.get('error')}")

    @property
    def is_alive(self) -> bool:
        """True while the process accepts comparisons."""
        return self.owner == os.getpid() and self.process.poll() is None

    def compare_answers(self, gold: str, answer: str) -> bool:
        """Returns whether math-verify considers the answers equal.

        Raises: WorkerTimeout, WorkerDied; both leave a stopped process. RuntimeError when the pair cannot be compared.
        """
        pipe = self.process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps([gold, answer]) + "\n")
            pipe.flush()
            reply = self._reply(self.timeout_s)
        except OSError as error:
            self.stop_process()
            raise WorkerDied("the grading worker has gone") from error
        except BaseException:  # Ctrl-C among them: a reply still on its way must not answer the next question
            self.stop_process()
            raise
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return bool(reply["equal"])

    def kill_process(self) -> None:
        """Kills the process; a running `compare_answers` then raises WorkerDied. Callable from any thread."""
        if self.owner == os.getpid():
            self.process.kill()

    def stop_process(self) -> None:
        """Ends the process now; calling it twice is harmless."""
        if self.owner != os.getpid():
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # unflushed data has no reader
                pipe.close()

    def _reply(self, timeout_s: float) -> dict[str, Any]:
        late = threading.Event()

        def kill() -> None:
            late.set()
            self.process.kill()

        assert self.process.stdout is not None
        timer = threading.Timer(timeout_s, kill)
        timer.daemon = True
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if late.is_set():
            raise WorkerTimeout(f"no result within {timeout_s:g} s")
        if not line.endswith("\n"):
            raise WorkerDied("the grading worker died")
        reply: dict[str, Any] = json.loads(line)
        return reply
