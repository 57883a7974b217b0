"""Grades answers: by rules, then from the cache, then in the worker process."""

from __future__ import annotations

import threading
import weakref

from decoding.validation import require_positive
from reason.grading.canonical import canonical_answer
from reason.grading.grade import NO_ANSWER, NO_GOLD, RIGHT, WRONG, Grade, ungraded_because
from reason.grading.process import WorkerDied, WorkerProcess, WorkerTimeout
from reason.grading.rules import grade_by_rules

CACHE_SIZE = 65_536


class Grader:
    r"""Compares answers with gold answers. Safe to use from threads and from a running event loop.

    `timeout_s` is wall-clock time for one comparison once it has started; then the comparison is given up,
    its grade is `ungraded`, and the worker is killed. Equal pairs are compared once. The worker starts with
    the first comparison that needs it and ends with `close`, with the grader, or with the program.

    >>> with Grader() as grader:
    ...     [str(grader.grade(r"\frac{1}{2}", answer)) for answer in ("0.5", "1/3", None)]
    ['right', 'wrong', 'no_answer']
    """

    def __init__(self, timeout_s: float = 5.0) -> None:
        require_positive("timeout_s", timeout_s)
        self.timeout_s = timeout_s
        self._worker = _WorkerSlot()
        self._cache: dict[tuple[str, str], Grade] = {}  # oldest first
        self._lock = threading.Lock()  # guards the worker and the cache
        self._closing = False
        weakref.finalize(self, self._worker.clear)

    def grade(self, gold: str | None, answer: str | None) -> Grade:
        """Grades `answer`; blocks for at most about `timeout_s` once the worker is free. Never raises."""
        known, pair = self._without_worker(gold, answer)
        return known or self._compare(*pair)

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker; None before the first comparison that needs it, and after `close`."""
        worker = self._worker.worker
        return None if worker is None else worker.process.pid

    def close(self) -> None:
        """Ends the worker; running comparisons end as `ungraded`. The grader stays usable and would start another."""
        self._closing = True
        if (worker := self._worker.worker) is not None:
            worker.kill_process()
        with self._lock:
            self._worker.clear()
            self._closing = False

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _without_worker(self, gold: str | None, answer: str | None) -> tuple[Grade | None, tuple[str, str]]:
        if gold is None:
            return NO_GOLD, ("", "")
        pair = canonical_answer(gold), canonical_answer(answer or "")
        if not pair[1]:
            return NO_ANSWER, pair
        is_text = "\\text" in gold or "\\mbox" in gold
        return grade_by_rules(*pair, text=is_text) or self._cache.get(pair), pair

    def _compare(self, gold: str, answer: str) -> Grade:
        with self._lock:
            if grade := self._cache.get((gold, answer)):
                return grade
            grade = self._ask(gold, answer)
            if not self._closing:
                self._cache[gold, answer] = grade
            if len(self._cache) > CACHE_SIZE:
                del self._cache[next(iter(self._cache))]
            return grade

    def _ask(self, gold: str, answer: str) -> Grade:
        failure = ""
        for _ in range(2):  # a worker killed from outside costs a second try, not the grade
            if self._closing:
                return ungraded_because("the grader was closed")
            try:
                return RIGHT if self._worker.get(self.timeout_s).compare_answers(gold, answer) else WRONG
            except WorkerDied as error:
                failure = str(error)
            except (WorkerTimeout, RuntimeError) as error:
                return ungraded_because(str(error))
            except OSError as error:
                failure = f"the grading worker cannot start: {error}"
        return ungraded_because(failure)


class _WorkerSlot:
    """Holds at most one worker; a class of its own so that a finalizer can reference it without the grader."""

    def __init__(self) -> None:
        self.worker: WorkerProcess | None = None

    def get(self, timeout_s: float) -> WorkerProcess:
        if self.worker is None or not self.worker.is_alive:
            self.clear()
            self.worker = WorkerProcess(timeout_s)
        return self.worker

    def clear(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.stop_process()
