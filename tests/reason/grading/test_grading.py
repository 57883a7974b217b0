"""Grades of answers, and the worker process: no input, signal or thread hangs or crashes the run."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from reason.grading import NO_ANSWER, NO_GOLD, RIGHT, WRONG, Grade, Grader
from reason.grading.process import WorkerDied, WorkerProcess, WorkerTimeout
from reason.grading.rules import grade_by_rules, refusal_reason
from tests.support.paths import DATA

HANG = r"9^{9^9}"  # reaches the worker and does not return


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(timeout_s=20) as shared:  # generous: these comparisons end, on however busy a machine
        yield shared


@pytest.fixture
def hasty() -> Iterator[Grader]:
    with Grader(timeout_s=0.5) as short_grader:
        yield short_grader


EQUAL = [
    ("033", "33"),
    ("33", "033"),
    ("204", r"204 \text{ minutes}"),
    ("1024", "2^{10}"),
    (r"\frac{1}{2}", "0.5"),
    ("1/3", "0.3333333"),
    (r"\sqrt{2}", "1.414214"),
    (".0000672", r"\frac{21}{312500}"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("1<x<2", "(1,2)"),
    (r"x \in [-2,7]", "[-2,7]"),
    ("1,-2", "-2,1"),
    ("x=5", "5"),
    ("5", "x = 5"),
    ("y = 2x + 3", "y=3+2x"),
    ("(a+5)(b+2)", "(b+2)(a+5)"),
    ("6 - 5i", "-5i+6"),
    (r"3 \pm 2 \sqrt{2}", r"3+2\sqrt2, 3-2\sqrt2"),
    (r"5.4 \text{ cents}", "5.4"),
    (r"15\mbox{ cm}^2", "15"),
    (r"\$18.90", "18.9"),
    (r"90^\circ", "90"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{(C)}", "C"),
    ("52_8", "52_{8}"),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}"),
    (r"\cot x", r"\frac{\cos x}{\sin x}"),
    ("58,500", "58500"),
    ("25", r"25\%"),
    ("10", r"\boxed{10}"),
]
DIFFERENT = [
    ("33", "34"),
    ("33", "-33"),
    ("C", "D"),
    ("1/2", "1/3"),
    (r"\frac{1}{3}", "0.333"),
    ("(3,4]", "[3,4]"),
    ("(1,2)", "(2,1)"),
    ("p - q", "q - p"),
    ("x^2", "x^3"),
    ("5", "5, 6"),
    ("52_8", "52_9"),  # math-verify takes these for equal
    (r"\text{east}", "seat"),  # and, as products of letters, these
    (r"\text{even}", "odd"),
    ("x=5", "y=5"),
    ("7", r"\text{seven}"),
    (r"2\sqrt{2}", r"2\sqrt{3}"),
    ("7", "I do not know"),
    ("5", r"5 \text{ million}"),
    ("7", r"\ge 7"),
    (r"< 7", "7"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_answers_are_graded_right(grader: Grader, gold: str, answer: str) -> None:
    assert grader.grade(gold, answer) == RIGHT


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different_answers_are_graded_wrong(grader: Grader, gold: str, answer: str) -> None:
    assert grader.grade(gold, answer).value == "wrong"


def test_text_and_thousands_are_graded_by_their_value(grader: Grader) -> None:
    assert grader.grade("5000000", r"5 \text{ million}") == RIGHT
    assert grader.grade("(-1,6)", r"\bigl(-1,\,6\bigr)\,") == RIGHT


def test_grader_compares_gold_first() -> None:
    """math-verify is not symmetric: swapped arguments would grade one of these otherwise."""
    with Grader(timeout_s=20) as grader:
        assert grader.grade("1<x<2", "(1,2)") == RIGHT
        assert grader.grade("(1,2)", "1<x<2") == WRONG


def test_missing_answer_and_missing_gold_have_their_own_grades() -> None:
    grader = Grader()
    assert grader.grade("1", None) == grader.grade("1", "") == grader.grade("1", "$ $") == NO_ANSWER
    assert grader.grade(None, "1") == grader.grade(None, None) == NO_GOLD
    assert [g.is_correct for g in (RIGHT, WRONG, NO_ANSWER, NO_GOLD, Grade("ungraded", "late"))] == [
        True,
        False,
        False,
        None,
        False,
    ]


@pytest.mark.parametrize(("gold", "answer"), [("33", "033"), ("C", "B"), ("x+1", "x + 1"), (r"\text{blue}", "red sky")])
def test_plain_answers_are_graded_without_a_worker(gold: str, answer: str) -> None:
    grader = Grader()
    grader.grade(gold, answer)
    assert grader.worker_pid is None


@pytest.mark.parametrize(
    "answer",
    [
        "9^9^9^9",
        "9^{9^{9^9}}",
        r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}",
        r"10^{(5^{5^{5^{5^{5}}} \cdot \log_{10}(5)} - 4)}",
        "x" * 100_000,
        "{" * 100_000,
        "1" * 3000 + ".5",
        "(" * 500 + ")" * 500,
        r"\frac{" * 300 + "1" + "}{2}" * 300,
    ],
)
def test_unreasonable_answers_are_wrong_at_once_with_a_reason(answer: str) -> None:
    grader = Grader()
    started = time.perf_counter()
    grade = grader.grade("x+1", answer)
    assert (grade.value, grade.reason.partition(":")[0]) == ("wrong", "answer")
    assert time.perf_counter() - started < 20  # not for ever
    assert grader.worker_pid is None


def test_ordinary_answers_are_reasonable() -> None:
    """Products of powers are no tower; only nested exponents count."""
    for answer in (
        "x^2y^3z^4w^5",
        r"2^3\cdot 3^4\cdot 5^6\cdot 7^2",
        "(x^2+1)^3^2",
        "2^{3^{4}}+5^{6^{7}}",
        "e^{-x^2/2}",
    ):
        assert not refusal_reason(answer)


def test_unreasonable_gold_answer_is_not_graded_wrong() -> None:
    grade = grade_by_rules("2^{2^{2^{2^2}}}", "7")
    assert grade is not None
    assert grade.value == "ungraded"


@pytest.mark.parametrize("answer", [HANG, r"\sum_{k=1}^{10^{9}} \frac{1}{k^2}", "10000000!", r"2^{10^{9}}"])
def test_hanging_comparison_costs_its_time_limit_once(hasty: Grader, answer: str) -> None:
    hasty.grade("x", "2x")  # the worker is up
    started = time.perf_counter()
    grade = hasty.grade("7", answer)
    assert (grade.value, grade.reason) == ("ungraded", "no result within 0.5 s")
    assert time.perf_counter() - started < 20
    started = time.perf_counter()
    assert hasty.grade("7", answer) == grade
    assert time.perf_counter() - started < 0.5  # asked once: again it would take its time limit


def test_killed_worker_costs_at_most_its_running_comparison() -> None:
    with Grader(timeout_s=20) as grader:
        assert grader.grade(r"\sqrt{8}", r"2\sqrt{2}") == RIGHT
        os.kill(_pid_of_worker(grader), signal.SIGKILL)
        assert grader.grade(r"\sqrt{18}", r"3\sqrt{2}") == RIGHT
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(grader.grade, "7", HANG)
            for _ in range(2):  # it is tried twice
                _kill_and_wait(grader, _busy_pid(grader), slow)
            assert slow.result(timeout=60) == Grade("ungraded", "the grading worker died")
        assert grader.grade(r"\sqrt{12}", r"2\sqrt{3}") == RIGHT


def test_grader_returns_to_each_of_fifty_threads_its_own_grade(grader: Grader) -> None:
    def one(i: int) -> Grade:
        return grader.grade(f"x^2 + {i % 25}", f"{i % 25} + x^2" if i < 25 else f"x^2 - {i % 25 + 1}")

    with ThreadPoolExecutor(50) as pool:
        grades = list(pool.map(one, range(50)))
    assert grades == [RIGHT] * 25 + [WRONG] * 25


async def _beats(stop: asyncio.Event) -> int:
    beats = 0
    while not stop.is_set():
        await asyncio.sleep(0.01)
        beats += 1
    return beats


def test_event_loop_stays_responsive_during_a_comparison(hasty: Grader) -> None:
    async def main() -> tuple[Grade, int]:
        stop = asyncio.Event()
        heart = asyncio.create_task(_beats(stop))
        grade = await asyncio.to_thread(hasty.grade, "7", HANG)
        stop.set()
        return grade, await heart

    grade, beats = asyncio.run(main())
    assert grade.value == "ungraded"
    assert beats > 10


def test_grade_may_be_called_inside_a_running_loop(grader: Grader) -> None:
    async def main() -> list[Grade]:
        return [
            grader.grade("x+y", "y+x"),
            *await asyncio.gather(*[asyncio.to_thread(grader.grade, "x+y", f"y+x+{i}") for i in range(5)]),
        ]

    assert [g.value for g in asyncio.run(main())] == ["right", "right"] + ["wrong"] * 4


def test_close_ends_a_running_comparison_and_the_grader_can_be_used_again() -> None:
    grader = Grader(timeout_s=60)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(grader.grade, gold, HANG) for gold in ("1", "2", "3")]
        _busy_pid(grader)
        started = time.perf_counter()
        grader.close()
        assert {f.result(timeout=10).reason for f in waiting} <= {"the grader was closed", "the grading worker died"}
    assert time.perf_counter() - started < 10
    assert grader.grade("x+y", "y+x") == RIGHT
    grader.close()


def test_no_worker_process_outlives_its_grader() -> None:
    grader = Grader(timeout_s=20)
    grader.grade("x+y", "y+x")
    pid = _pid_of_worker(grader)
    del grader
    gc.collect()
    _wait_until(lambda: not _running(pid), timeout_s=10)


def test_grader_works_in_a_program_without_an_import_guard_and_leaves_no_process() -> None:
    """A spawned multiprocessing child would import this program again, and again."""
    program = (
        "import threading\n"
        "from reason.grading import Grader\n"
        "g = Grader(20)\n"
        "t = threading.Thread(target=lambda: print(g.grade('x+y', 'y+x'), g.worker_pid))\n"
        "t.start(); t.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    grade, pid = done.stdout.split()
    assert grade == "right"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_worker_of_a_killed_parent_ends_too() -> None:
    program = (
        "import os, signal\n"
        "from reason.grading import Grader\n"
        "g = Grader(20); g.grade('x+y', 'y+x')\n"
        "print(g.worker_pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    _wait_until(lambda: not _running(int(done.stdout)))


def test_worker_that_cannot_start_reports_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "worker.py"
    broken.write_text('import sys; print(\'{"error": "no module named sympy"}\')')
    monkeypatch.setattr("reason.grading.process.WORKER", broken)
    assert Grader().grade("x+y", "y+x") == Grade("ungraded", "the grading worker cannot start: no module named sympy")
    broken.write_text("raise SystemExit(3)")
    assert Grader().grade("x+y", "y+x").value == "ungraded"


def test_stopped_worker_process_is_reported() -> None:
    worker = WorkerProcess(0.3)
    with pytest.raises(WorkerTimeout):
        worker.compare_answers("7", HANG)
    assert not worker.is_alive
    worker.stop_process()
    with pytest.raises((WorkerDied, ValueError)):
        worker.compare_answers("7", "8")


def test_every_gold_answer_of_math500_equals_itself_and_not_the_next_one(grader: Grader) -> None:
    if not (DATA / "math500.jsonl").exists():
        pytest.skip("no copy of MATH-500")
    with (DATA / "math500.jsonl").open() as lines:
        golds = [json.loads(line)["answer"] for line in lines]
    assert all(grader.grade(gold, f" ${gold}$.") == RIGHT for gold in golds)
    symbolic = [gold for gold in golds if not gold.lstrip("-").isdigit()]
    pairs = list(zip(symbolic, symbolic[1:] + symbolic[:1], strict=True))[::3]  # all of them take ten seconds
    right = [(a, b) for a, b in pairs if grader.grade(a, b) == RIGHT]
    assert right == []


def test_canonical_answer_is_equal_to_its_source_for_math_verify() -> None:
    """The worker gets canonical forms: each must still parse as the answer it came from."""
    if not (DATA / "math500.jsonl").exists():
        pytest.skip("no copy of MATH-500")
    from reason.grading.answer import canonical_answer

    with (DATA / "math500.jsonl").open() as lines:
        golds = {json.loads(line)["answer"] for line in lines}
    worker = WorkerProcess(30)
    changed = [
        gold
        for gold in sorted(golds)[::3]
        if not (canonical_answer(gold).isalpha() or worker.compare_answers(gold, canonical_answer(gold)))
    ]
    worker.stop_process()
    assert changed == []


def _pid_of_worker(grader: Grader) -> int:
    pid = grader.worker_pid
    assert pid is not None
    return pid


def _busy_pid(grader: Grader) -> int:
    """Returns the pid of the worker after it has started and had time to begin its comparison."""
    _wait_until(lambda: grader.worker_pid is not None)
    time.sleep(0.5)
    return _pid_of_worker(grader)


def _kill_and_wait(grader: Grader, pid: int, under_way: Future[Grade]) -> None:
    os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: under_way.done() or grader.worker_pid not in (None, pid))


def _running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3] if Path("/proc").exists() else True


def _wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_caller_with_much_memory_in_use_gets_grades_too() -> None:
    """A worker inherits its parent's peak memory, with which every "wrong" became "ungraded" beside a large model."""
    held = np.ones((9 << 30) // 8 // 8)  # 1.1 GiB, touched
    with Grader() as grader:
        assert grader.grade("1/2", "1/3").value == "wrong"
    assert held.any()
