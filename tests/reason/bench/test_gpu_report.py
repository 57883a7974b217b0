"""The GPU report: no part takes the others' lines, every part runs on a bare machine, and what is wrong is seen."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.model.segment_attention import SegmentAttention
from decoding.model.segments import SegmentTiles
from reason.bench.gpu_report.bundled import draw_problems, load_writer
from reason.bench.gpu_report.ceilings import PRODUCTS
from reason.bench.gpu_report.device_tests import (
    DEVICE_HELPERS,
    KERNEL_HELPERS,
    find_absent,
    find_tests,
    run_device_tests,
)
from reason.bench.gpu_report.lines import ReportFiles, ReportLine, merge_reports
from reason.bench.gpu_report.parts import PARTS, choose_parts
from reason.bench.gpu_report.rig import ReportRig, RigSettings
from reason.bench.gpu_report.runner import run_parts
from reason.bench.gpu_report.speculation import measure_recordings
from reason.bench.gpu_report.steady import count_layer_weights
from reason.bench.puppet import find_shape
from reason.bench.workload import BundledTarget
from reason.config.compose import load_option
from tests.support.hidden_packages import hide_packages
from tests.support.paths import ROOT
from tests.support.pretended_gpu import pretended_gpu
from tests.support.report_parts import make_part

Line = dict[str, Any]
REHEARSE = RigSettings(rehearses=True, recordings=None, root=ROOT)
ABSENT = ("hydra", "omegaconf", "math_verify")


def run_script(out: Path, environment: dict[str, str], *arguments: str) -> list[Line]:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_report.py"), "--rehearse", "--out", str(out), *arguments]
    # from another folder: the script finds the repository, which need not be installed
    result = subprocess.run(command, cwd=out.parent, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (file,) = out.glob("*.json")
    lines: list[Line] = json.loads(file.read_text(encoding="utf-8"))["lines"]
    assert all(line["name"] in result.stdout for line in lines)
    return lines


def test_every_part_runs_on_a_machine_without_hydra(tmp_path: Path) -> None:
    recordings = tmp_path / "recordings.jsonl"
    texts = ["one and two make three", "two and one make three", "three is one and two", "it is three"]
    recordings.write_text(
        "".join(json.dumps({"question": f"what is {n} and 2?", "samples": texts}) + "\n" for n in range(3))
    )
    environment = hide_packages(tmp_path, *ABSENT)
    lines = run_script(tmp_path / "out", environment, "--part", "a,b,c", "--recordings", str(recordings))
    failed = [line for line in lines if line["status"] == "FAIL"]
    assert not failed, failed
    assert {line["part"] for line in lines if line["name"] == "seconds of the part"} == PARTS.keys()
    # what a CPU cannot do, and nothing else, is left out
    assert {line["value"] for line in lines if line["status"] == "skipped"} == {
        "a CPU has no waits to count",
        "hydra is absent",
    }
    report = merge_reports([tmp_path / "out"])
    assert all(f"| {name} | " in report for name in PARTS)


def test_without_numba_the_ceilings_are_measured(tmp_path: Path) -> None:
    lines = run_script(tmp_path / "out", hide_packages(tmp_path, "numba"), "--part", "a0,a1")
    (numba,) = (line for line in lines if line["name"] == "numba")
    assert numba["status"] == "FAIL"
    assert "No module named 'numba'" in numba["value"]
    others = [line for line in lines if line["name"] != "numba"]
    assert not [line for line in others if line["status"] == "FAIL"]
    assert [line for line in others if line["name"].startswith("faster layout")]


def report_of(folder: Path, *functions: str, settings: RigSettings = REHEARSE, minutes: float = 5) -> ReportFiles:
    report = ReportFiles(folder, "try", {"command": "none"})
    parts = [make_part(f"x{number}", function) for number, function in enumerate(functions)]
    run_parts(parts, settings, report, minutes=minutes, grace=1)
    return report


def results_of(report: ReportFiles) -> list[tuple[str, str, str]]:
    return [(line.part, line.name, line.status) for line in report.lines if line.name != "seconds of the part"]


def test_after_an_exception_and_a_crash_the_next_parts_run_in_new_processes(tmp_path: Path) -> None:
    report = report_of(
        tmp_path, "add_one_line", "fail_with_an_exception", "add_one_line", "end_the_process", "add_one_line"
    )
    assert results_of(report) == [
        ("x0", "line", "PASS"),
        ("x1", "before", "figure"),
        ("x1", "part", "FAIL"),
        ("x2", "line", "PASS"),
        ("x3", "before", "figure"),
        ("x3", "part", "FAIL"),
        ("x4", "line", "PASS"),
    ]
    raised, ended = (line for line in report.lines if line.status == "FAIL")
    assert raised.value == "LookupError: no such kernel"
    assert "in fail_with_an_exception" in str(raised.details["traceback"])
    assert ended.value.endswith("code -9")
    processes = [line.details["process"] for line in report.lines if line.status == "PASS"]
    assert len(set(processes)) == 3
    saved = json.loads(report.json_file.read_text(encoding="utf-8"))["lines"]
    assert [line["value"] for line in saved] == [line.value for line in report.lines]


def test_a_part_that_hangs_is_stopped_and_the_next_one_runs(tmp_path: Path) -> None:
    report = report_of(tmp_path, "sleep_on", "add_one_line", settings=replace(REHEARSE, rehearses=False))
    expected = [("x0", "before", "figure"), ("x0", "part", "FAIL"), ("x1", "line", "PASS")]
    assert results_of(report) == expected
    assert report.lines[1].value == "stopped: its time was up"


def test_parts_without_time_are_skipped_by_name(tmp_path: Path) -> None:
    report = report_of(tmp_path, "add_one_line", "sleep_on", minutes=0)
    assert results_of(report) == [("x0", "add_one_line", "skipped"), ("x1", "sleep_on", "skipped")]


def test_lines_are_on_disk_as_soon_as_they_are_known(tmp_path: Path) -> None:
    report = ReportFiles(tmp_path / "new", "a", {"command": "none"})
    for number in range(3):
        report.add_line(ReportLine("a0", f"line {number}", "1 | 2\n3", "FAIL"))
        assert len(json.loads(report.json_file.read_text(encoding="utf-8"))["lines"]) == number + 1
        assert f"| line {number} | 1 \\| 2 3 |" in report.json_file.with_suffix(".md").read_text(encoding="utf-8")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"gpu_report_a.json", "gpu_report_a.md"}


def test_reports_are_merged_in_the_order_of_the_parts(tmp_path: Path) -> None:
    for name, status in (("b", "FAIL"), ("a", "PASS")):
        ReportFiles(tmp_path / name, name, {"command": name}).add_line(
            ReportLine(f"{name}1", "speed", f"of {name}", "FAIL" if status == "FAIL" else "PASS", details={"x": 1})
        )
    merged = merge_reports([tmp_path / "b", tmp_path / "a"])
    assert "1 PASS, 1 FAIL, 0 figure, 0 skipped" in merged
    assert merged.index("of b") < merged.index("of a") < merged.rindex("of b"), "failed lines first, then all"
    with pytest.raises(ValueError, match=r"has no gpu_report_\*\.json"):
        merge_reports([tmp_path])


def test_parts_are_chosen_by_letter_or_name() -> None:
    assert [part.name for part in choose_parts("b1,a")] == [name for name in PARTS if name[0] == "a"] + ["b1"]
    for wrong in ("d", "a9", ""):
        with pytest.raises(ValueError, match=f"part must be from a, b, c, a0, .*; got {wrong}$"):
            choose_parts(wrong)
    for letter in "abc":  # a machine runs a command for ten minutes
        assert sum(part.seconds for part in choose_parts(letter)) <= 8.5 * 60


def test_constants_are_those_of_the_yamls_and_the_shapes() -> None:
    writer, bundled = load_writer("cpu"), BundledTarget.load(device="cpu", dtype="float32")
    assert (writer.prompt.format, writer.max_tokens) == (bundled.prompt.format, bundled.max_tokens)
    assert (writer.eos_ids, writer.task) == (bundled.eos_ids, bundled.task)
    assert writer.make_questions(per_family=2, split="train") == bundled.make_questions(per_family=2, split="train")
    families = {problem.meta["family"] for problem in draw_problems(100, "heldout")}
    assert families == set(load_option("task", writer.task)["families"])
    shape = find_shape("qwen2.5-7b")
    head = shape.hidden_size // shape.num_heads
    products = {
        "qkv": (shape.hidden_size, (shape.num_heads + 2 * shape.num_kv_heads) * head),
        "out": (shape.num_heads * head, shape.hidden_size),
        "gate_up": (shape.hidden_size, 2 * shape.mlp_size),
        "down": (shape.mlp_size, shape.hidden_size),
    }
    assert products == PRODUCTS
    assert count_layer_weights(shape) == shape.num_layers * sum(
        inputs * outputs for inputs, outputs in products.values()
    )


def test_tests_of_the_device_are_those_that_ask_for_one() -> None:
    kernels, devices = (find_tests(ROOT, helpers) for helpers in (KERNEL_HELPERS, DEVICE_HELPERS))
    assert {"tests/decoding/test_gpu_sampler.py", "tests/decoding/model/test_segment_kernels.py"} <= set(kernels)
    assert "tests/reason/test_devices.py" in devices
    assert "tests/reason/bench/test_gpu_report.py" not in kernels + devices


@pytest.mark.parametrize(
    ("test", "status"),
    [
        ("raise ModuleNotFoundError(\"No module named 'hydra'\")", "skipped"),
        ("assert 1 == 2", "FAIL"),
    ],
)
def test_file_is_skipped_only_where_every_failure_is_for_want_of_a_package(
    test: str, status: str, tmp_path: Path
) -> None:
    (tmp_path / "tests" / "reason").mkdir(parents=True)
    absent = "raise ModuleNotFoundError(\"No module named 'hydra'\")"
    (tmp_path / "tests" / "reason" / "test_devices.py").write_text(
        f"def test_it_refuses_a_device_with_a_name_that_fills_most_of_a_line():\n    {absent}\n\n\n"
        f"def test_it_refuses_another():\n    {test}\n"
    )
    lines: list[ReportLine] = []
    run_device_tests(ReportRig("c2", replace(REHEARSE, root=tmp_path), time.monotonic() + 1000, lines.append))
    assert [line.status for line in lines] == [status]


def test_file_that_cannot_be_imported_for_want_of_a_package_is_skipped() -> None:
    why = "E   ModuleNotFoundError: No module named 'hydra'\n"
    summary = "=== short test summary info ===\nERROR tests/test_a.py\n"
    assert find_absent(why + summary) == "hydra"
    assert find_absent(why + summary + "FAILED tests/test_a.py::test_b - assert 1 == 2\n") is None
    assert find_absent("E   SyntaxError: invalid syntax\n" + summary) is None


def test_recordings_with_fewer_samples_than_branches_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "recordings.jsonl"
    file.write_text("".join(f'{{"question": "what is {n} and 2?", "samples": ["it is {n}"]}}\n' for n in range(3)))
    lines: list[ReportLine] = []
    settings = replace(REHEARSE, recordings=file)
    measure_recordings(ReportRig("b2", settings, time.monotonic() + 1000, lines.append))
    assert [line.name for line in lines] == ["recorded solutions, stand at 2 live"]


def test_waits_are_counted_where_they_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    from reason.bench.gpu_report.steady_round import list_waits

    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def wait_twice() -> None:
        for text in ("called a synchronizing CUDA operation", "of something else"):
            warnings.warn(text, stacklevel=1)
            warnings.warn(text, stacklevel=1)

    assert [place.rpartition(":")[0] for place in list_waits(wait_twice)] == [__file__] * 2
    assert modes == ["warn", "default"]


@pytest.mark.parametrize(
    ("disturb", "is_refused"),
    [
        (lambda out: out, False),
        (lambda out: out + 0.001, True),
        (lambda out: out.where(out != out[0, 0], torch.nan), True),
    ],
)
def test_wrong_attention_is_seen(
    disturb: Callable[[Tensor], Tensor], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from reason.bench.gpu_report.attention_case import AttentionCase, HeadSizes, draw_inputs
    from reason.bench.round_contexts import SearchContexts

    attend = SegmentAttention.attend
    monkeypatch.setattr(SegmentAttention, "attend", lambda *args: disturb(attend(*args)))
    source = SearchContexts(2, 1, 2, prompt=(3, 9), written=(5, 9), step=(1, 9))
    kv, inputs = draw_inputs(source, 3, 6, 0)
    heads, cpu = HeadSizes("tiny", 1, 2, 16), torch.device("cpu")
    case = AttentionCase(heads, torch.float32, cpu, kv, inputs, SegmentTiles(5, 64))
    assert (case.find_error(1e-4) > 1) == is_refused


def test_new_memory_is_poisoned_meanwhile() -> None:
    from reason.bench.gpu_report.attention_case import poisoned_memory

    with poisoned_memory():
        assert torch.empty(9).isnan().all()
        assert torch.zeros(1).new_empty((2, 3), dtype=torch.float32).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


class PretendedRig(ReportRig):
    """A tiny report whose tensors are on a pretended GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


class HostGenerator(torch.Generator):
    """A generator on the CPU, whatever device it is asked for."""

    def __new__(cls, device: torch.device | None = None) -> HostGenerator:
        return super().__new__(cls)


@pytest.mark.parametrize("name", ["a3", "b3"])
def test_parts_place_tensors_where_a_gpu_needs_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    lines: list[ReportLine] = []
    rig = PretendedRig(name, REHEARSE, float("inf"), lines.append)
    monkeypatch.setattr(torch, "Generator", HostGenerator)
    with pretended_gpu(monkeypatch):
        PARTS[name].load()(rig)
    assert lines
    assert not [line for line in lines if line.status in ("FAIL", "skipped")]
