"""Checks every line of a thought about a puzzle exactly, without a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from reason.tasks.puzzles import forms
from reason.tasks.puzzles.puzzle import Puzzle, State
from reason.tasks.puzzles.thought import WORDS
from reason.tasks.synthetic.exercise import ExactWriter

_STATEMENT = re.compile(r"So (?:x|n|the number) = (\d+)\.")
_FURTHER = 60  # trials after the answer that a thought may write if it missed it


class Verdict(Enum):
    """What the checker says of a line. `CARRIED`: follows from an earlier wrong line and is wrong for that alone."""

    RIGHT = "right"
    CARRIED = "carried"
    SLIP = "slip"


@dataclass(frozen=True)
class CheckedLine:
    """A line of a thought. `label` names the trial, None for another line; `end` counts characters of the text."""

    text: str
    label: str | None
    verdict: Verdict
    end: int


@dataclass(frozen=True)
class ThoughtCheck:
    """The lines of a thought and where the right answer was stated first, as a number of characters."""

    lines: list[CheckedLine]
    first_right_statement: int | None

    @property
    def slips(self) -> list[CheckedLine]:
        """The lines that are wrong by themselves."""
        return [line for line in self.lines if line.verdict is Verdict.SLIP]

    @property
    def lasting_slips(self) -> list[CheckedLine]:
        """The slips that no later line puts right."""
        repaired = {line.label: line.end for line in self.lines if line.verdict is Verdict.RIGHT and line.label}
        return [slip for slip in self.slips if slip.label is None or repaired.get(slip.label, 0) < slip.end]


def check_thought(puzzle: Puzzle, text: str, *, start: State | None = None) -> ThoughtCheck:
    """Checks a thought that begins at the first candidate, or at the `start` that its notes gave.

    An unfinished last line is left out. A line that no thought of this family has is a slip.
    """
    thought, closing, _ = text.partition(forms.CLOSING)
    if not closing:
        thought = thought[: thought.rfind("\n") + 1]
    exact = _exact_lines(puzzle)
    words = {*WORDS, *puzzle.plan_lines(), *puzzle.slow_lines()}
    begin = puzzle.try_next(start or puzzle.first_state, ExactWriter()).line
    expected = {puzzle.label(begin): begin}
    last: State | None = None
    lines: list[CheckedLine] = []
    first_right: int | None = None
    for line, end in _lines(thought):
        state, label = puzzle.parse_trial(line), None
        statement = _STATEMENT.fullmatch(line)
        if state is not None:
            label = puzzle.label(line)
            is_exact, follows = exact.get(label) == line, expected.get(label) == line
            following = puzzle.try_next(state, ExactWriter()).line
            expected[puzzle.label(following)] = following
            last = state
        elif statement:
            number = int(statement[1])
            is_exact, follows = number == puzzle.answer, last is not None and number == puzzle.candidate(last)
            if is_exact and first_right is None:
                first_right = end
        else:
            is_exact, follows = line in words, False
        verdict = Verdict.RIGHT if is_exact else Verdict.CARRIED if follows else Verdict.SLIP
        lines.append(CheckedLine(line, label, verdict, end))
    return ThoughtCheck(lines, first_right)


def _exact_lines(puzzle: Puzzle) -> dict[str, str]:
    """Returns the exact line of every trial by its label, some trials beyond the answer included."""
    trials = list(puzzle.trials)
    for _ in range(_FURTHER):
        following = puzzle.try_next(trials[-1].state, ExactWriter())
        if puzzle.parse_trial(following.line) is None:
            break
        trials.append(following)
    return {puzzle.label(trial.line): trial.line for trial in reversed(trials)}


def _lines(thought: str) -> Iterator[tuple[str, int]]:
    end = 0
    for line in thought.splitlines(keepends=True):
        end += len(line)
        if line.strip():
            yield line.rstrip("\n"), end
