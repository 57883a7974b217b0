"""Parts of a GPU report that end in every way a part can end."""

from __future__ import annotations

import os
import signal
import time

from reason.bench.gpu_report.parts import ReportPart
from reason.bench.gpu_report.rig import ReportRig


def make_part(name: str, function: str) -> ReportPart:
    return ReportPart(name, function, "tests.support.report_parts", function, 2)


def add_one_line(rig: ReportRig) -> None:
    rig.add_check("line", f"of {rig.part}", True, "is there", process=os.getpid())


def fail_with_an_exception(rig: ReportRig) -> None:
    rig.add_figure("before", "the exception")
    raise LookupError("no such kernel")


def end_the_process(rig: ReportRig) -> None:
    rig.add_figure("before", "the end")
    os.kill(os.getpid(), signal.SIGKILL)


def sleep_on(rig: ReportRig) -> None:
    rig.add_figure("before", "sleeping")
    time.sleep(600)
