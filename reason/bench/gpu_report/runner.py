"""Runs parts in a process of their own, so that none can take the others' results or time.

After an exception, a crash or a part that hangs, the rest continue in a new process: a CUDA error makes the old one
useless. What a part has measured before is in the report already.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from typing import Literal

from reason.bench.gpu_report.lines import ReportFiles, ReportLine
from reason.bench.gpu_report.parts import ReportPart
from reason.bench.gpu_report.rig import NO_TIME, ReportRig, RigSettings, free_models

_PATIENCE = 2.0
"""A part may take so many times its expected seconds before it is stopped."""
_LEAST_SHARE = 0.3
"""A part begins only where this share of its expected seconds is left."""
_COMPILING_PARTS = "b1,b3"
"""Parts that use all loops of the engine which numba compiles."""


@dataclass(frozen=True)
class PartEvent:
    """A message of a process: the next part begins, has a line, or has ended."""

    kind: Literal["begin", "line", "end"]
    line: ReportLine | None = None


def run_parts(
    parts: Sequence[ReportPart], settings: RigSettings, report: ReportFiles, *, minutes: float, grace: float = 15.0
) -> None:
    """Runs the parts one after the other and adds their lines to the report. *Mutates* it.

    A part leaves out what does not fit; one that goes on for `grace` seconds after its time is stopped.
    """
    end = time.monotonic() + 60 * minutes
    waiting = [*parts]
    if settings.rehearses:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, by the processes of the parts
    with nullcontext() if settings.rehearses else _compile_meanwhile(settings):
        while waiting and time.monotonic() < end:
            _run_process(waiting, settings, report, end, grace)
    for part in waiting:
        report.add_line(ReportLine(part.name, part.title, NO_TIME, "skipped"))


@contextmanager
def _compile_meanwhile(settings: RigSettings) -> Iterator[None]:
    """Fills numba's cache in the background: on a new machine that takes a minute, which no part should wait for."""
    program = settings.root / "scripts" / "gpu_report.py"
    with TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, str(program), "--part", _COMPILING_PARTS, "--rehearse", "--out", folder],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            if process.poll() is None:  # with the processes of its parts
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _run_process(
    waiting: list[ReportPart], settings: RigSettings, report: ReportFiles, end: float, grace: float
) -> None:
    """Runs parts in a new process until one fails or all have ended. *Mutates* `waiting`."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=run_worker, args=(send, tuple(waiting), settings, end))
    process.start()
    send.close()
    # also before it begins: a process that cannot start must not start for ever
    running: ReportPart | None = waiting[0]
    limit = end + grace
    try:
        while waiting:
            if not receive.poll(max(0.0, limit - time.monotonic())):
                report.add_line(ReportLine(waiting.pop(0).name, "part", "stopped: its time was up", "FAIL"))
                return
            event: PartEvent = receive.recv()
            if event.kind == "begin":
                running = waiting[0]
                limit = min(end, time.monotonic() + _allowed_seconds(running, settings)) + grace
            elif event.line is not None:
                report.add_line(event.line)
            else:
                waiting.pop(0)
                running = None
        process.join(grace)
    except EOFError:
        process.join()
        if running is not None:
            value = f"the process ended with code {process.exitcode}"
            report.add_line(ReportLine(waiting.pop(0).name, "part", value, "FAIL"))
    finally:
        if process.is_alive():
            process.kill()
            process.join()


def _allowed_seconds(part: ReportPart, settings: RigSettings) -> float:
    """Returns the time that a part may take; one that is rehearsed has all there is."""
    return float("inf") if settings.rehearses else _PATIENCE * part.seconds


def run_worker(send: Connection, parts: Sequence[ReportPart], settings: RigSettings, end: float) -> None:
    """Runs parts and sends their lines; ends after the first one that fails."""
    for part in parts:
        begin = time.monotonic()
        send.send(PartEvent("begin"))
        deadline = min(end, begin + _allowed_seconds(part, settings))
        rig = ReportRig(part.name, settings, deadline, lambda line: send.send(PartEvent("line", line)))
        is_failed = False
        if rig.has_seconds(_LEAST_SHARE * rig.pick(part.seconds, 0)):
            is_failed = _run_part(part, rig)
            rig.add_figure("seconds of the part", f"{time.monotonic() - begin:.0f} s")
        else:
            rig.add_skipped(part.title, NO_TIME)
        send.send(PartEvent("end"))
        if is_failed:
            break
    send.close()


def _run_part(part: ReportPart, rig: ReportRig) -> bool:
    """Returns whether the part raised, and adds a line about that."""
    try:
        part.load()(rig)
        free_models()
    except Exception as error:  # what fails here is a result of the report
        text = (str(error).strip() or "without a message").splitlines()[0][:200]
        value, details = f"{type(error).__name__}: {text}", {"traceback": traceback.format_exc()}
        rig.emit_line(ReportLine(part.name, "part", value, "FAIL", details=details))
        return True
    return False
