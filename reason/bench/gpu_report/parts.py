"""The parts of the report: names, what they measure, and how long each takes on an H100 at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from reason.bench.gpu_report.rig import ReportRig

_PACKAGE = "reason.bench.gpu_report"


@dataclass(frozen=True)
class ReportPart:
    """A part of the report: `function` of `module` runs it. `seconds` is what it is expected to take."""

    name: str
    title: str
    module: str
    function: str
    seconds: float

    def load(self) -> Callable[[ReportRig], None]:
        """Returns the function; only now its module is imported, so a part fails alone."""
        function: Callable[[ReportRig], None] = getattr(import_module(self.module), self.function)
        return function


PARTS = {
    part.name: part
    for part in (
        ReportPart("a0", "versions, card, compilers", f"{_PACKAGE}.machine", "describe_machine", 30),
        ReportPart("a1", "ceilings of memory and products", f"{_PACKAGE}.ceilings", "measure_limits", 40),
        ReportPart(
            "a2", "kernels against float64, sampler against the CPU", f"{_PACKAGE}.kernel_checks", "check_kernels", 110
        ),
        ReportPart("a3", "a row alone and in a batch", f"{_PACKAGE}.invariance", "check_invariance", 40),
        ReportPart("a4", "the host in a round", f"{_PACKAGE}.host_part", "measure_host", 20),
        ReportPart(
            "a5", "one steady round: waits, kernels, idle time", f"{_PACKAGE}.steady_round", "inspect_round", 60
        ),
        ReportPart("a6", "rounds of 1.5B and 7B at real contexts", f"{_PACKAGE}.real_rounds", "measure_rounds", 150),
        ReportPart("b1", "speculation on a puppet of 7B", f"{_PACKAGE}.speculation", "measure_puppet", 240),
        ReportPart("b2", "speculation over recorded solutions", f"{_PACKAGE}.speculation", "measure_recordings", 60),
        ReportPart("b3", "searches of 64 branches", f"{_PACKAGE}.searches", "measure_searches", 90),
        ReportPart("b4", "a reward model that reads", f"{_PACKAGE}.reward_pass", "measure_reading", 60),
        ReportPart("b5", "transformers beside the engine", f"{_PACKAGE}.anchors", "compare_with_transformers", 60),
        ReportPart("c1", "tests of the kernels, compiled", f"{_PACKAGE}.device_tests", "run_kernel_tests", 240),
        ReportPart("c2", "tests of whole searches on the device", f"{_PACKAGE}.device_tests", "run_device_tests", 150),
    )
}
"""In the order in which they run. A part's letter is the command that runs it."""


def choose_parts(text: str) -> list[ReportPart]:
    """Returns the parts that `a`, `a2`, or `a2,b1` name, each once, in their order.

    >>> [part.name for part in choose_parts("a2,a0")]
    ['a0', 'a2']

    Raises: ValueError naming the valid ones.
    """
    letters = sorted({name[0] for name in PARTS})
    chosen = set()
    for name in text.split(","):
        members = [name] if name in PARTS else [part for part in PARTS if part[0] == name]
        if not members:
            raise ValueError(f"part must be from {', '.join([*letters, *PARTS])}; got {name}")
        chosen |= {*members}
    return [part for part in PARTS.values() if part.name in chosen]
