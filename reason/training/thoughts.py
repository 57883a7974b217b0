"""Makes training examples of thoughts: whole ones, forced ends, probes, and thoughts that write or read notes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reason.tasks.puzzles import forms
from reason.tasks.puzzles.families import PUZZLES
from reason.tasks.puzzles.puzzle import Puzzle
from reason.tasks.puzzles.thought import NOTES_HAVE_IT, Mark, Thought, ThoughtStyle, write_thought
from reason.tasks.synthetic.draw import draw_exercise
from reason.training.drills import DRILL_QUESTION, draw_drill
from reason.training.examples import NONE, TrainingExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LONGEST_THOUGHT = 1500  # tokens; longer ones are cut
_LONG_SEARCH = 40  # trials, above which most examples go on from notes

KINDS = {"whole": 0.48, "answer": 0.22, "notes": 0.3}
"""What follows the thought, or a part of it, and how often."""
_STATED = 0.35  # share of the requests for an answer that come when the thought has one; others come anywhere
_RESUMED, _HAVE_IT = 0.45, 0.12  # share of thoughts that go on from notes; of these, with the answer in the notes


@dataclass(frozen=True)
class ThoughtDraft:
    """What an example is made of: a question, perhaps with notes, a puzzle and a thought about it."""

    question: str
    puzzle: Puzzle
    thought: Thought


class ThoughtSource:
    """Opens a source of examples of thoughts, drawn by the weights of the families of puzzles.

    `difficulties` are the lowest and the highest, drawn evenly; None: of each family the smaller of two.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        style: ThoughtStyle | None = None,
        difficulties: tuple[int, int] | None = None,
    ) -> None:
        self._weights = weights
        self._style = style or ThoughtStyle()
        self._difficulties = difficulties

    def __call__(self, tokenizer: PreTrainedTokenizerFast) -> ThoughtEncoder:
        return ThoughtEncoder(tokenizer, self._weights, self._style, self._difficulties)


class ThoughtEncoder:
    """Draws a thought and encodes it. What a program puts in is encoded by itself, as it will be then."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        weights: Mapping[str, float],
        style: ThoughtStyle,
        difficulties: tuple[int, int] | None,
    ) -> None:
        self._encode = tokenizer.backend_tokenizer.encode
        self._eos: int = tokenizer.eos_token_id
        self._weights, self._style, self._difficulties = weights, style, difficulties

    def __call__(self, rng: random.Random) -> TrainingExample:
        """Returns one example of the training split."""
        if rng.random() < self._style.drill:
            return self._encode_drill(*draw_drill(rng))
        draft = draw_draft(rng, self._weights, self._style, self._difficulties)
        prompt: list[int] = self._encode(forms.render_prompt(draft.question)).ids
        encoded = self._encode(draft.thought.text)
        ids: list[int] = encoded.ids
        (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        asked_for, reply = "", ""
        if kind == "whole" and len(ids) > LONGEST_THOUGHT:
            kind = rng.choice(("answer", "notes"))
        if kind != "whole":
            length_of_thought = ids.index(self._encode(forms.CLOSING).ids[0])
            longest, first = min(length_of_thought, LONGEST_THOUGHT), 1
            if kind == "answer" and rng.random() < _STATED:
                # else the model leaves the box empty although its thought has the answer
                stated = next((mark.end for mark in draft.thought.marks if mark.answer is not None), 0)
                first = max(1, sum(end <= stated for _, end in encoded.offsets))
            length = rng.randint(min(first, longest), longest)
            ids = ids[:length]
            asked_for, reply = _interrupt(kind, draft, encoded.offsets[length - 1][1])
        slips = [
            len(prompt) + index
            for index, (start, end) in enumerate(encoded.offsets[: len(ids)])
            if any(start < slip.stop and end > slip.start for slip in draft.thought.slips)
        ]
        put_in: list[int] = self._encode(asked_for).ids
        begin = len(prompt) + len(ids)
        rest = [*put_in, *self._encode(reply).ids, self._eos]
        return TrainingExample(
            ids=[*prompt, *ids, *rest],
            prompt_length=len(prompt),
            rivals=[NONE] * (len(ids) + len(rest)),
            untaught=[*slips, *range(begin, begin + len(put_in))],
            # a reply is a few tokens behind hundreds: without emphasis it is hardly learned
            emphasis=range(begin + len(put_in), begin + len(rest)) if put_in else (),
        )

    def _encode_drill(self, text: str, results: list[range]) -> TrainingExample:
        prompt: list[int] = self._encode(forms.render_prompt(DRILL_QUESTION)).ids
        encoded = self._encode(text)
        untaught = [
            len(prompt) + index
            for index, (start, end) in enumerate(encoded.offsets)
            if not any(start < result.stop and end > result.start for result in results)
        ]
        return TrainingExample([*prompt, *encoded.ids], len(prompt), [NONE] * len(encoded.ids), untaught)


def draw_draft(
    rng: random.Random,
    weights: Mapping[str, float],
    style: ThoughtStyle,
    difficulties: tuple[int, int] | None = None,
) -> ThoughtDraft:
    """Draws a puzzle of the training split and writes a thought about it, perhaps one that goes on from notes."""
    puzzle = draw_exercise(rng, "train", weights=weights, difficulties=difficulties, families=PUZZLES)
    if not isinstance(puzzle, Puzzle):
        raise TypeError(f"{type(puzzle).__name__} is no puzzle")
    num_trials = len(puzzle.trials)
    if num_trials < 2 or rng.random() > (0.8 if num_trials > _LONG_SEARCH else _RESUMED):
        return ThoughtDraft(puzzle.question, puzzle, write_thought(puzzle, rng, style=style))
    if rng.random() < _HAVE_IT:
        notes = puzzle.write_success_notes(puzzle.answer)
        text = f"{NOTES_HAVE_IT}\n{forms.CLOSING}\n\n{forms.render_answer(puzzle.answer)}"
        thought = Thought(text, [], [Mark(0, puzzle.trials[-1].state, puzzle.answer)])
    else:
        state = puzzle.trials[rng.randrange(num_trials - 1)].state
        notes = puzzle.write_notes(state)
        thought = write_thought(puzzle, rng, style=style, start=state)
    return ThoughtDraft(forms.add_notes(puzzle.question, notes), puzzle, thought)


def _interrupt(kind: str, draft: ThoughtDraft, end: int) -> tuple[str, str]:
    """Returns what a program puts in after `end` characters of a thought, and what the model replies."""
    mark = draft.thought.mark_at(end)
    if kind == "notes":
        return forms.NOTES_REQUEST, _write_notes(draft.puzzle, mark)
    # an empty box is no answer: a thought that has none says so instead of drawing a number
    return forms.ANSWER_REQUEST, "}." if mark is None or mark.answer is None else f"{mark.answer}}}."


def _write_notes(puzzle: Puzzle, mark: Mark | None) -> str:
    if mark is None:
        return forms.NO_NOTES
    return puzzle.write_notes(mark.state) if mark.answer is None else puzzle.write_success_notes(mark.answer)


def thought_texts(count: int) -> Iterator[str]:
    """Yields texts with everything that the thinker reads and writes, to train its tokenizer on."""
    rng = random.Random(0)
    weights = dict.fromkeys(PUZZLES, 1.0)
    for _ in range(count):
        draft = draw_draft(rng, weights, ThoughtStyle())
        notes = draft.puzzle.write_notes(draft.puzzle.trials[0].state)
        texts = [forms.ANSWER_REQUEST, forms.NOTES_REQUEST, forms.NO_NOTES, notes]
        yield forms.render_prompt(draft.question) + draft.thought.text + rng.choice(texts)
