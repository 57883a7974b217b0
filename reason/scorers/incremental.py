"""Score the steps of one problem's paths, reading every step once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.core import Reader, Spent, Tokens
from reason.scorers.base import StepFormat
from reason.scorers.prefixes import Prefix, Reading, plan
from search.strategy import ScoredPaths
from search.tree import Step


class BoundPrm:
    """A `StepScorer` for one problem: a format, a reader, and the memory of what was scored before.

    A child is scored by reading its own tokens. A path of more than `limit` tokens is not scored (None). Two
    calls at once are safe; at worst both read the same new step, with the same result.

    Scores agree with scoring every path alone and whole, up to the reader's rounding.
    """

    def __init__(self, *, reader: Reader, form: StepFormat, limit: int, question: str, prompt: Tokens) -> None:
        self._reader = reader
        self._form = form
        self._limit = limit
        self._root = Prefix.root(form.begin(question, prompt))
        self._begun = False
        self._pieces: dict[tuple[bool, str, Tokens], Tokens] = {}

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`. `spent.scored_tokens` counts the tokens of steps not scored before, and
        the question's with the first of them: with a prefix cache large enough, what the model really runs."""
        walks = [self._walk(path) for path in paths]
        readable = [walk for walk in walks if walk and walk[-1].end <= self._limit]
        readings = plan(walk[-1] for walk in readable)
        tokens = await self._read(readings)
        scores = [self._scores(walk) if not walk or walk[-1].end <= self._limit else None for walk in walks]
        return ScoredPaths(scores, Spent(scorer_calls=sum(s is not None for s in scores), scored_tokens=tokens))

    def _walk(self, path: Sequence[Step]) -> list[Prefix]:
        prefix, walk = self._root, []
        for i, step in enumerate(path):
            key = (i == 0, step.text, step.tokens)
            if key not in self._pieces:
                self._pieces[key] = self._form.piece(step, first=i == 0)
            prefix = prefix.child(self._pieces[key])
            walk.append(prefix)
        return walk

    async def _read(self, readings: Sequence[Reading]) -> int:
        """Reads and settles; the number of tokens run."""
        if not readings:
            return 0
        answers = await self._reader.read([r.tokens for r in readings], [r.start for r in readings])
        for reading, outputs in zip(readings, answers, strict=True):
            self._settle(reading, np.asarray(outputs, dtype=np.float64))
        tokens = sum(len(r.tokens) - r.start for r in readings) + (0 if self._begun else self._root.end)
        self._begun = True
        return tokens

    def _settle(self, reading: Reading, outputs: np.ndarray) -> None:
        """Readings of one plan must settle in its order: a path may begin with what an earlier one has read."""
        assert len(outputs) == len(reading.tokens) - reading.start, (outputs.shape, len(reading.tokens), reading.start)
        for prefix, rows in zip(reading.prefixes, reading.rows(), strict=True):
            prefix.outputs = outputs[rows]
        path = reading.prefixes[-1].path()[1:]
        pieces = [prefix.outputs for prefix in path if prefix.outputs is not None]
        assert len(pieces) == len(path), f"{len(path)} steps have {len(pieces)} outputs"
        scores = self._form.read(pieces)
        assert scores.shape == (len(path),), f"{len(path)} steps got {scores.shape} scores"
        if not bool(np.all((scores >= 0) & (scores <= 1))):
            raise FloatingPointError(f"the reward model gave scores outside [0, 1]: {scores.tolist()}")
        for prefix, score in zip(path, scores.tolist(), strict=True):
            prefix.score = score

    def _scores(self, walk: Sequence[Prefix]) -> list[float]:
        scores = [prefix.score for prefix in walk if prefix.score is not None]
        assert len(scores) == len(walk), f"{len(walk)} steps got {len(scores)} scores"
        return scores
