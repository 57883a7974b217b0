"""Scores the steps of one problem's paths and reads every step once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from decoding.core import Reader, Tokens, Usage
from reason.scorers.base import Floats, StepFormat
from reason.scorers.prefixes import EncodedPrefix, PrefixReading, plan_readings
from reason.scorers.read_limit import ReadLimit
from search.strategy import ScoredPaths
from search.tree import Step

log = logging.getLogger(__name__)


class IncrementalScorer:
    """A `StepScorer` of one problem: a format, a reader, and the prefixes scored before (see `prefixes.py`).

    Scoring a child reads its own tokens only. A path beyond `limit` is not scored (None); a warning names the first
    one, the limit and what moves it. Concurrent calls are safe; at worst both read the same new step, with the same
    result.

    Scores agree with scoring every path alone and whole, up to the reader's rounding.
    """

    def __init__(
        self, *, reader: Reader, step_format: StepFormat, limit: ReadLimit, question: str, prompt: Tokens
    ) -> None:
        self._reader = reader
        self._format = step_format
        self._limit = limit
        self._root = EncodedPrefix.make_root(step_format.encode_prompt(question, prompt))
        self._has_read_prompt = self._has_warned = False
        self._pieces: dict[tuple[bool, str, Tokens, str | None], Tokens] = {}

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        """See `search.strategy.StepScorer`.

        `usage.scored_tokens` counts the tokens of steps not scored before, and with the first of them the prompt's: the
        tokens that the model processes if the prefix cache is large enough.
        """
        encoded_paths = [self._encode_path(path) for path in paths]
        readable = [path for path in encoded_paths if path and self._is_readable(path)]
        self._warn_of_long_paths(encoded_paths)
        num_tokens = await self._read_prefixes(plan_readings(path[-1] for path in readable))
        scores = [self._path_scores(path) if self._is_readable(path) else None for path in encoded_paths]
        num_scored = sum(path_scores is not None for path_scores in scores)
        return ScoredPaths(scores, Usage(scorer_calls=num_scored, scored_tokens=num_tokens))

    def _is_readable(self, path: Sequence[EncodedPrefix]) -> bool:
        return not path or path[-1].end <= self._limit.max_tokens

    def _warn_of_long_paths(self, paths: Sequence[Sequence[EncodedPrefix]]) -> None:
        """Warns once per problem of paths that are not scored."""
        longest = max((path[-1].end for path in paths if path), default=0)
        if longest > self._limit.max_tokens and not self._has_warned:
            self._has_warned = True
            explanation = self._limit.explain(prompt_tokens=self._root.end)
            log.warning("a path of %d tokens is not scored: %s", longest, explanation)

    def _encode_path(self, path: Sequence[Step]) -> list[EncodedPrefix]:
        """Returns the prefixes of a path, one per step."""
        prefix, prefixes = self._root, []
        for i, step in enumerate(path):
            key = (i == 0, step.text, step.tokens, step.model)
            if key not in self._pieces:
                self._pieces[key] = self._format.encode_step(step, first=i == 0)
            prefix = prefix.get_child(self._pieces[key])
            prefixes.append(prefix)
        return prefixes

    async def _read_prefixes(self, readings: Sequence[PrefixReading]) -> int:
        """Reads and stores outputs and scores; returns the number of tokens read."""
        if not readings:
            return 0
        answers = await self._reader.encode([r.tokens for r in readings], [r.start for r in readings])
        for reading, outputs in zip(readings, answers, strict=True):  # in order: a later one may begin with an earlier
            self._store_scores(reading, np.asarray(outputs, dtype=np.float64))
        num_tokens = sum(len(r.tokens) - r.start for r in readings) + (0 if self._has_read_prompt else self._root.end)
        self._has_read_prompt = True
        return num_tokens

    def _store_scores(self, reading: PrefixReading, outputs: Floats) -> None:
        """Sets outputs and scores of a reading's prefixes; those before its start must be set."""
        assert len(outputs) == len(reading.tokens) - reading.start, (outputs.shape, len(reading.tokens), reading.start)
        for prefix, rows in zip(reading.prefixes, reading.output_slices(), strict=True):
            prefix.outputs = outputs[rows]
        path = reading.prefixes[-1].path_from_root()[1:]
        pieces = [prefix.outputs for prefix in path if prefix.outputs is not None]
        assert len(pieces) == len(path), f"{len(path)} steps have {len(pieces)} outputs"
        scores = self._format.score_steps(pieces)
        assert scores.shape == (len(path),), f"{len(path)} steps got {scores.shape} scores"
        if not bool(np.all((scores >= 0) & (scores <= 1))):  # also false for nan
            raise FloatingPointError(f"the reward model gave scores outside [0, 1]: {scores.tolist()}")
        for prefix, score in zip(path, scores.tolist(), strict=True):
            prefix.score = score

    def _path_scores(self, path: Sequence[EncodedPrefix]) -> list[float]:
        scores = [prefix.score for prefix in path if prefix.score is not None]
        assert len(scores) == len(path), f"{len(path)} steps got {len(scores)} scores"
        return scores
