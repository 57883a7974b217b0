"""Measures what a user waits for: time to the first line, to the end, the longest silence, and memory."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from decoding.compiling_process import ENDED, LOOPS, TIMEOUT_S
from reason.bench.report import join_report
from reason.runs.tables import ResultTable

QUESTION = 'question="Compute (2+3)*4."'
CASES: Mapping[str, Sequence[str]] = {
    "help": ("solve", "--help"),
    "wrong_setting": ("solve", "search.n=0"),
    "doctor": ("doctor",),
    "question": ("solve", QUESTION),
    "first_run": ("solve", QUESTION),
}
"""Arguments of the command `reason` by the name of a case."""

FRESH = frozenset({"first_run"})
"""Cases that begin with empty caches: everything is compiled and timed anew."""

REFUSED = frozenset({"wrong_setting"})
"""Cases that end with an error."""

_READ_BYTES = 1 << 16


@dataclass(frozen=True)
class StartSeconds:
    """One run of a command.

    first_line     seconds to the first byte that it writes, to either stream
    total          seconds to its end
    silence        longest time between two outputs, its begin and its end included, in seconds
    peak_mb        most memory that it held, in megabytes; not less than what the calling process held at its start
    returncode     its exit status
    """

    first_line: float
    total: float
    silence: float
    peak_mb: float
    returncode: int


def measure_starts(names: Sequence[str], repeats: int) -> dict[str, list[StartSeconds]]:
    """Runs the cases in turns; before, each once, uncounted, to fill the caches that it may use.

    Raises: ValueError where a command ends as its case should not, or leaves a process that does not end.
    """
    with TemporaryDirectory() as bytecode:
        # An installed package has its bytecode, whatever this process was told about writing some.
        environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        for name in names:
            run_case(name, environment)
        runs: dict[str, list[StartSeconds]] = {name: [] for name in names}
        for _ in range(repeats):
            for name, measured in runs.items():
                measured.append(run_case(name, environment))
    return runs


def run_case(name: str, environment: Mapping[str, str]) -> StartSeconds:
    """Runs one case in a folder of its own."""
    with TemporaryDirectory() as folder:
        if name in FRESH:
            environment = {**environment, "REASON_CACHE": f"{folder}/costs", "NUMBA_CACHE_DIR": f"{folder}/code"}
        run = run_timed([sys.executable, "-m", "reason", *CASES[name]], Path(folder), environment)
        if name in FRESH:
            wait_for_compiler(Path(folder))
    if (run.returncode != 0) != (name in REFUSED):
        raise ValueError(f"reason {' '.join(CASES[name])} ended with status {run.returncode}")
    return run


def wait_for_compiler(folder: Path) -> None:
    """Waits for the process that compiles drafts, if a command has left one that writes below `folder`: not beside the
    next command."""
    end = time.monotonic() + TIMEOUT_S
    while any(folder.rglob(f"{LOOPS}.compiled")) and not any(folder.rglob(f"{ENDED}.compiled")):
        if time.monotonic() > end:
            raise ValueError(f"after {TIMEOUT_S:.0f} s the process that compiles drafts had not ended")
        time.sleep(0.1)


def run_timed(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> StartSeconds:
    """Runs a command in a terminal of its own, as a user does, and notes when it writes."""
    terminal, its_end = pty.openpty()
    begin = last = time.perf_counter()
    first, silence = None, 0.0
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=its_end, stdout=its_end, stderr=its_end
    ) as process:
        os.close(its_end)
        while _read_some(terminal):
            now = time.perf_counter()
            first = now - begin if first is None else first
            silence, last = max(silence, now - last), now
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    now = time.perf_counter()
    os.close(terminal)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6  # macOS counts bytes, Linux KiB
    total = now - begin
    return StartSeconds(total if first is None else first, total, max(silence, now - last), peak, process.returncode)


def _read_some(terminal: int) -> bytes:
    try:
        return os.read(terminal, _READ_BYTES)
    except OSError:  # how Linux says that the other end is closed
        return b""


def summarise_case(name: str, runs: Sequence[StartSeconds]) -> dict[str, Any]:
    """Returns the medians of a case, and all its runs."""
    medians = {key: median(getattr(run, key) for run in runs) for key in ("first_line", "total", "silence", "peak_mb")}
    return {"case": name, "arguments": list(CASES[name]), **medians, "runs": [asdict(run) for run in runs]}


def make_table(cases: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Returns the medians of `summarise_case` as a table."""
    header = ("command", "first line, s", "end, s", "longest silence, s", "most memory, MB")
    rows = [
        [
            f"reason {' '.join(case['arguments'])}" + (", empty caches" if case["case"] in FRESH else ""),
            *(f"{case[key]:.2f}" for key in ("first_line", "total", "silence")),
            f"{case['peak_mb']:,.0f}",
        ]
        for case in cases
    ]
    return ResultTable("What a user waits for: medians", header, rows)


def format_report(result: Mapping[str, Any], command: str) -> str:
    """Returns the report in Markdown; it ends with the figures as JSON."""
    parts = [
        f"{len(result['cases'][0]['runs'])} runs of each, in turns, as processes of their own with a terminal. Silence "
        "is the longest time without output, from the start to the end. With empty caches loops are compiled; the "
        "first rounds have no drafts.",
        make_table(result["cases"]).markdown_section(),
    ]
    return join_report("Start", command, parts, machine=result["machine"], figures=result)
