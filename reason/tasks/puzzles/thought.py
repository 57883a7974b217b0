"""Writes thoughts: trials, dead ends, checks that find slips, and needless checks after the answer is there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from decoding.validation import require_share
from reason.tasks.puzzles.forms import CLOSING, render_answer
from reason.tasks.puzzles.puzzle import Puzzle, State, Trial
from reason.tasks.synthetic.exercise import ExactWriter, common_prefix

CHECKS = ("Wait, let me check again.", "Hold on, let me check the last lines.")
CHECK_IS_RIGHT = "All right, I go on."
SLIP_IS_THERE = "That was a slip. I go on from here."
DOUBLE_CHECKS = (
    "Let me double-check.",
    "Wait, let me make sure.",
    "Let me verify this once more.",
    "But is it right? Let me look again.",
)
GIVE_UP = "This is slow. Alternatively, I try it another way."
NOTES_HAVE_IT = "The notes have it."
WORDS = (*CHECKS, CHECK_IS_RIGHT, SLIP_IS_THERE, *DOUBLE_CHECKS, GIVE_UP, NOTES_HAVE_IT)
"""Lines that claim nothing about numbers."""

_TRIALS_IN_PARAGRAPH = 5
_MOST_BLOCKS = 6
_LONGEST_CHECK = 8


@dataclass(frozen=True, kw_only=True)
class ThoughtStyle:
    """Probabilities of the parts of a thought.

    dead_end        of a slower way at the beginning, which is given up
    check           of a check after a trial
    slip            of one wrong number, which a later check finds
    false_hit       of a slip that pretends success
    re_verify       of needless checks after the answer is there
    least_share, most_share    of these checks in the thought
    drill           of sums without a thought in its place, in training

    Raises: ValueError naming the setting.
    """

    dead_end: float = 0.3
    check: float = 0.04
    slip: float = 0.3
    false_hit: float = 0.35
    re_verify: float = 0.9
    least_share: float = 0.3
    most_share: float = 0.6
    drill: float = 0.0

    def __post_init__(self) -> None:
        for name in ("dead_end", "check", "slip", "false_hit", "re_verify", "least_share", "most_share", "drill"):
            require_share(f"thought_style.{name}", getattr(self, name))
        if not self.least_share <= self.most_share < 1:
            raise ValueError(
                "thought_style.least_share must be at most most_share, and that below 1, "
                f"got {self.least_share} and {self.most_share}"
            )


@dataclass(frozen=True)
class Mark:
    """What is known after a line: its end in the text, the state of the search, and the answer stated last."""

    end: int
    state: State
    answer: int | None


@dataclass
class Thought:
    """A written thought. `slips` are the characters of planted wrong numbers, `marks` one per line of trials."""

    text: str = ""
    slips: list[range] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def mark_at(self, end: int) -> Mark | None:
        """Returns the last mark in the first `end` characters."""
        return next((mark for mark in reversed(self.marks) if mark.end <= end), None)


class _SlipWriter(ExactWriter):
    """Writes one number of a trial wrong."""

    def __init__(self, at: int, wrong: int) -> None:
        super().__init__()
        self._at, self._wrong = at, wrong

    def __call__(self, value: int) -> int:
        self.num_written += 1
        return self._wrong if self.num_written - 1 == self._at else value


class ThoughtWriter:
    """Writes one thought of one puzzle, from the first trial or from `start` on."""

    def __init__(self, puzzle: Puzzle, rng: random.Random, style: ThoughtStyle, start: State | None) -> None:
        self._puzzle, self._rng, self._style = puzzle, rng, style
        self._is_resumed = start is not None
        self._trail: list[State] = [start or puzzle.first_state]
        self._answer: int | None = None
        self._thought = Thought()
        self._trials_in_paragraph = 0

    def write(self) -> Thought:
        """Returns the finished thought, closing tag and answer included."""
        self._begin()
        slip_in = self._rng.randint(1, max(1, self._num_left)) if self._rng.random() < self._style.slip else 0
        while True:
            slip_in -= 1
            before = self._trail[-1]
            trial = self._try(before)
            if slip_in == 0:
                self._slip(before, trial)
                if self._answer is None:
                    continue
            else:
                self._add_trial(trial)
                self._trail.append(trial.state)
            if self._answer is not None or trial.is_hit:
                break
            if self._rng.random() < self._style.check and len(self._trail) > 2:
                self._check(self._check_length(), self._rng.choice(CHECKS))
                self._paragraph(CHECK_IS_RIGHT)
        if self._answer is None:
            self._state_answer()
        self._re_verify()
        self._thought.text += f"\n{CLOSING}\n\n{render_answer(self._puzzle.answer)}"
        return self._thought

    @property
    def _num_left(self) -> int:
        start = self._trail[0]
        states = [self._puzzle.first_state, *(trial.state for trial in self._puzzle.trials)]
        return len(states) - 1 - states.index(start)

    def _begin(self) -> None:
        wants_dead_end = not self._is_resumed and self._rng.random() < self._style.dead_end
        if wants_dead_end and len(lines := self._puzzle.slow_lines()) > 2:
            for line in lines[: self._rng.randint(min(3, len(lines)), len(lines))]:
                self._add(line)
            self._paragraph(GIVE_UP)
        for line in self._puzzle.plan_lines():
            self._add(line)
        self._new_paragraph()

    def _try(self, state: State) -> Trial:
        return self._puzzle.try_next(state, ExactWriter())

    def _slip(self, before: State, exact: Trial) -> None:
        """Writes a wrong trial, goes on for some trials, then checks, finds the slip and repairs it."""
        wrong = self._wrong_trial(before, exact)
        if wrong is None:
            self._add_trial(exact)
            self._trail.append(exact.state)
            if exact.is_hit:
                self._state_answer()
            return
        start = len(self._thought.text)
        first = common_prefix(wrong.line, exact.line)
        last = first + 1
        while wrong.line[first].isdigit() and wrong.line[last : last + 1].isdigit():
            last += 1
        self._add_trial(wrong)
        start = self._thought.text.rindex(wrong.line)
        self._thought.slips.append(range(start + first, start + last))
        trail = [before, wrong.state]
        hit = wrong.is_hit
        for _ in range(self._rng.randint(0, 4)):
            if hit:
                break
            carried = self._try(trail[-1])
            if self._puzzle.parse_trial(carried.line) is None:
                break
            self._add_trial(carried)
            trail.append(carried.state)
            hit = carried.is_hit
        if hit:
            self._answer = self._puzzle.candidate(trail[-1])
            self._state_answer()
        self._paragraph(self._rng.choice(DOUBLE_CHECKS if hit else CHECKS))
        self._answer = None
        earlier = self._rng.randint(0, min(2, len(self._trail) - 1))
        for state in self._trail[len(self._trail) - 1 - earlier : -1]:
            self._add_trial(self._try(state), known=trail[-1])
        self._add_trial(exact)
        self._trail.append(exact.state)
        if exact.is_hit:
            self._state_answer()
        else:
            self._paragraph(SLIP_IS_THERE)
            self._new_paragraph()

    def _wrong_trial(self, before: State, exact: Trial) -> Trial | None:
        counter = ExactWriter()
        self._puzzle.try_next(before, counter)
        wants_hit = self._rng.random() < self._style.false_hit
        for _ in range(40):
            at = counter.num_written - 1 if wants_hit else self._rng.randrange(counter.num_written)
            wrong = 0 if wants_hit else self._rng.randrange(40) if self._rng.random() < 0.3 else self._near(before, at)
            trial = self._puzzle.try_next(before, _SlipWriter(at, wrong))
            is_readable = self._puzzle.parse_trial(trial.line) == trial.state
            if is_readable and trial.line != exact.line and not exact.is_hit and trial.is_hit == wants_hit:
                return trial
        return None

    def _near(self, before: State, at: int) -> int:
        values: list[int] = []

        def note(value: int) -> int:
            values.append(value)
            return value

        self._puzzle.try_next(before, note)
        return max(0, values[at] + self._rng.choice((-10, -2, -1, 1, 2, 10)))

    def _check_length(self) -> int:
        return self._rng.randint(2, max(2, min(_LONGEST_CHECK, len(self._trail) - 1)))

    def _check(self, length: int, words: str) -> None:
        """Repeats the last `length` trials."""
        self._paragraph(words)
        trail = self._trail[-length - 1 :]
        for state, _ in pairwise(trail):
            self._add_trial(self._try(state), known=trail[-1])

    def _state_answer(self) -> None:
        self._answer = self._puzzle.candidate(self._trail[-1]) if self._answer is None else self._answer
        self._paragraph(self._puzzle.state_statement(self._answer))

    def _re_verify(self) -> None:
        if self._rng.random() >= self._style.re_verify:
            return
        needed = len(self._thought.text)
        share = self._rng.uniform(self._style.least_share, self._style.most_share)
        for _ in range(_MOST_BLOCKS):
            if len(self._thought.text) * (1 - share) >= needed:
                break
            self._check(len(self._trail) - 1, self._rng.choice(DOUBLE_CHECKS))
            self._state_answer()

    def _add_trial(self, trial: Trial, known: State | None = None) -> None:
        """Adds a line; `known` is the state of the search where the line repeats an earlier one."""
        if self._trials_in_paragraph == _TRIALS_IN_PARAGRAPH:
            self._new_paragraph()
        self._add(trial.line)
        self._trials_in_paragraph += 1
        self._thought.marks.append(
            Mark(
                len(self._thought.text),
                known or trial.state,
                self._puzzle.candidate(trial.state) if trial.is_hit else self._answer,
            )
        )

    def _paragraph(self, line: str) -> None:
        self._new_paragraph()
        self._add(line)

    def _new_paragraph(self) -> None:
        if self._thought.text:
            self._thought.text += "\n\n"
        self._trials_in_paragraph = 0

    def _add(self, line: str) -> None:
        separated = not self._thought.text or self._thought.text.endswith("\n\n")
        self._thought.text += line if separated else f"\n{line}"


def write_thought(
    puzzle: Puzzle, rng: random.Random, *, style: ThoughtStyle | None = None, start: State | None = None
) -> Thought:
    """Returns a thought about `puzzle` that ends with its answer; `start` is a state before the answer."""
    return ThoughtWriter(puzzle, rng, style or ThoughtStyle(), start).write()
