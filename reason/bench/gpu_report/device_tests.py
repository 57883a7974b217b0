"""Parts c1 and c2: the project's own tests, with the kernels compiled and on the device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from reason.bench.gpu_report.lines import ReportLine
from reason.bench.gpu_report.rig import NO_TIME, ReportRig

KERNEL_HELPERS = ("tests.support.kernels", "tests.support.compiled_kernels")
"""What tests of kernels import: where kernels run, and how they are compiled."""
DEVICE_HELPERS = ("real_or_pretended_gpu",)
"""What tests use that place whole engines on a device."""
_TINY_KERNEL_TESTS, _TINY_DEVICE_TESTS = "tests/decoding/model/test_segments.py", "tests/reason/test_devices.py"
ABSENT = re.compile(r"No module named '(hydra|omegaconf|math_verify)")
"""Packages that a lent machine lacks; tests that import them cannot run there."""
_TEST_SECONDS, _AT_ONCE, _BAR = 100.0, 4, "all pass"
_SUMMARY = re.compile(
    r"^(?:FAILED|ERROR) .*|^.*\b(?:passed|failed|error|errors|skipped|deselected)\b.* in [\d.]+s.*", re.M
)


def run_kernel_tests(rig: ReportRig) -> None:
    """Adds a line per test file of the kernels; rehearsed, of tests of their plans, which take seconds."""
    _run_files(rig, rig.pick(find_tests(rig.settings.root, KERNEL_HELPERS), [_TINY_KERNEL_TESTS]))


def run_device_tests(rig: ReportRig) -> None:
    """Adds a line per test file of engines on a device; rehearsed, of one test on a pretended GPU."""
    files = rig.pick(find_tests(rig.settings.root, DEVICE_HELPERS), [_TINY_DEVICE_TESTS])
    _run_files(rig, files, rig.pick((), ("-k", "refuses")))


def find_tests(root: Path, helpers: Sequence[str]) -> list[str]:
    """Returns the test files below `root` in which a helper is named, in their order."""
    return [
        str(file.relative_to(root))
        for file in sorted((root / "tests").rglob("test_*.py"))
        if any(helper in file.read_text(encoding="utf-8") for helper in helpers)
    ]


def find_absent(output: str) -> str | None:
    """Returns the package for want of which all tests that failed did so; None if one failed for another reason."""
    absent = ABSENT.search(output)
    summary = output.rpartition("short test summary info")[2]
    failed = [line for line in summary.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    # a file that cannot be imported has a line without a reason
    is_only = all(ABSENT.search(line) or (line.startswith("ERROR ") and " - " not in line) for line in failed)
    return absent[1] if absent and is_only else None


def _run_files(rig: ReportRig, files: Sequence[str], options: Sequence[str] = ()) -> None:
    """Runs some files at a time: most of their time is that of the host."""
    if find_spec("pytest") is None:
        for file in files:
            rig.add_skipped(file, "pytest is absent")
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for line in pool.map(lambda file: _run_file(rig, file, options), files):
            rig.emit_line(line)


def _run_file(rig: ReportRig, file: str, options: Sequence[str]) -> ReportLine:
    if not rig.has_seconds(rig.pick(10, 0)):
        return ReportLine(rig.part, file, NO_TIME, "skipped")
    # no cache: the working copy may be read-only
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", *options, file]
    root = str(rig.settings.root)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ, "COLUMNS": "240",  # so that the summary has whole errors
        "TRITON_INTERPRET": rig.pick("0", "1"), "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip
    try:
        result = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=_TEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return ReportLine(rig.part, file, f"stopped after {_TEST_SECONDS:.0f} s", "FAIL", _BAR)
    if result.returncode and (absent := find_absent(result.stdout)):
        return ReportLine(rig.part, file, f"{absent} is absent", "skipped")
    summary = [match[0].strip("= ") for match in _SUMMARY.finditer(result.stdout)]
    value = summary[-1] if summary else f"pytest ended with code {result.returncode}"
    details = {"failed": summary[:-1], "output": result.stdout[-6000:], "errors": result.stderr[-2000:]}
    return ReportLine(rig.part, file, value, "FAIL" if result.returncode else "PASS", _BAR, details)
