r"""Programming problems of your own: a row has a prompt, and tests that the written program must pass.

    {"prompt": "Write a function add(a, b) that returns their sum.", "tests": ["assert add(1, 2) == 3"]}

The published fields of HumanEval (`prompt`, `test`, `entry_point`) and MBPP (`text`, `test_list`, `test_setup_code`)
are read too. A program is the last fenced block of an answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from decoding.validation import require_count, require_switch
from reason.grading import NO_ANSWER, NO_GOLD, RIGHT, Grade
from reason.problem import Problem
from reason.tasks.base import Task, validate_subset
from reason.tasks.programs import ProgramRunner, explain_no_runner
from reason.tasks.rows import DatasetRow, read_rows

_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_PROMPTS, _TESTS, _SETUPS = ("prompt", "question", "text"), ("tests", "test", "test_list"), ("setup", "test_setup_code")

log = logging.getLogger(__name__)


class CodeTask(Task):
    """Programming problems from `path`, a file of rows.

    run_code     False: programs are written and saved, and nothing is graded; True: each is run with its tests, with
                 the rights of the user (`reason.tasks.programs`)
    timeout_s    processor seconds of a program with its tests
    memory_mib   memory of its process
    instruction  what is put behind each prompt

    A candidate votes with its program as it is written: choose by score (`search=best_of_n`) rather than by votes.

    Raises: ValueError naming the setting, DataUnavailable, InvalidRow.
    """

    def __init__(
        self,
        *,
        path: str | None = None,
        run_code: bool = False,
        timeout_s: int = 10,
        memory_mib: int = 1024,
        instruction: str = "",
        limit: int | None = None,
        offset: int = 0,
        shuffle_seed: int | None = None,
    ) -> None:
        validate_subset(limit=limit, offset=offset, shuffle_seed=shuffle_seed)
        require_switch("task.run_code", run_code)
        require_count("task.timeout_s", timeout_s, at_least=1, at_most=3600)
        require_count("task.memory_mib", memory_mib, at_least=64, at_most=1 << 20)
        if path is None:
            raise ValueError("task.path must be a file with your problems (fields: prompt, tests)")
        if run_code and (reason := explain_no_runner()) is not None:
            raise ValueError(f"task.run_code=true cannot run here: {reason}")
        rows = read_rows(path)
        problems = [_problem(row, instruction, is_graded=run_code) for row in rows]
        super().__init__("code", problems, limit=limit, offset=offset, shuffle_seed=shuffle_seed, find=find_program)
        self._runner = ProgramRunner(timeout_s, memory_mib) if run_code else None
        self._known: dict[tuple[str, str], Grade] = {}
        if not run_code:
            log.warning("programs are not run and not graded; task.run_code=true runs them, with your rights")

    def extract_answer(self, text: str) -> str | None:
        """Returns the program of an answer as it is written, or None."""
        return find_program(text)

    def grade(self, problem: Problem, answer: str | None) -> Grade:
        """Grades a program, or a text with one; blocks for the seconds that its tests take."""
        if problem.answer is None or self._runner is None:
            return NO_GOLD
        program = None if answer is None else find_program(answer) or answer
        if program is None:
            return NO_ANSWER
        key = (problem.id, program)
        if key not in self._known:
            setup = str(problem.meta.get("setup", ""))
            failure = self._runner.find_failure(program, problem.answer, setup)
            self._known[key] = RIGHT if failure is None else Grade("wrong", failure)
        return self._known[key]

    def grade_text(self, problem: Problem, text: str) -> Grade:
        """Grades the program of a whole solution."""
        return self.grade(problem, find_program(text))


def find_program(text: str) -> str | None:
    r"""Returns the last fenced block of a text; None without one.

    >>> find_program("First\n```python\nx = 1\n```\nor rather\n```\nx = 2\n```\n")
    'x = 2\n'
    >>> find_program("x = 1") is None
    True
    """
    blocks = _FENCED.findall(text)
    return (blocks[-1] if blocks and blocks[-1].strip() else None) or None


def _problem(row: DatasetRow, instruction: str, *, is_graded: bool) -> Problem:
    prompt, tests = row.require_text(*_PROMPTS), _read_tests(row)
    setup = row.first_value(*_SETUPS)
    identity = row.first_value("id", "task_id")
    return Problem(
        id=f"code/{row.index if identity is None else identity}",
        question=f"{prompt}\n\n{instruction}" if instruction else prompt,
        answer=tests if is_graded else None,
        read_answer=find_program,
        meta={"tests": tests, **({} if setup is None else {"setup": str(setup)})},
    )


def _read_tests(row: DatasetRow) -> str:
    """Returns the tests as one program. Raises: InvalidRow."""
    given = row.first_value(*_TESTS)
    if isinstance(given, Sequence) and not isinstance(given, str):
        if not given or not all(isinstance(each, str) and each.strip() for each in given):
            raise row.invalid_row("field 'tests' must be a text or a list of texts, each of them Python")
        tests = "\n".join(given)
    else:
        tests = row.require_text(*_TESTS)
    entry_point = row.first_value("entry_point")
    if entry_point is not None and "def check(" in tests:
        tests += f"\ncheck({entry_point})"
    try:
        compile(tests, "tests", "exec")
    except (SyntaxError, ValueError) as error:
        raise row.invalid_row(f"field 'tests' is no Python: {error}") from None
    return tests
