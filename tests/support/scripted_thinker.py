"""Models that think, one token per character: one that writes 400 paragraphs and answers 7, and one that writes at
random and answers probes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from decoding.core import Generation, GenerationRequest, Tokens
from search.thought import ThoughtBudget
from tests.support.toy_search import EOS, ROOT, ToyEngine

NUM_PARAGRAPHS = 400
LONG = 700
"""Tokens of the long paragraphs, of which there are ten."""
CLOSING = "</think>"
PROBE = "\n\nThe answer is \\boxed{"
FORCED_END = f"\nEnough.{CLOSING}It is "


def _write_paragraph(number: int) -> str:
    length = LONG if number % 40 == 20 else 40
    opening = "Wait, " if number % 7 == 3 else ""
    interim = f"so it may be \\boxed{{{number % 5}}} " if number % 50 == 25 else ""
    return f"{opening}{interim}case {number} ".ljust(length - 3, "x") + ".\n\n"


def write_thought(num_paragraphs: int) -> str:
    """Returns the first paragraphs of the thought."""
    return "".join(map(_write_paragraph, range(num_paragraphs)))


THOUGHT = write_thought(NUM_PARAGRAPHS)
SOLUTION = f"{THOUGHT}</think>\n\nThe answer is \\boxed{{7}}."
"""What it writes behind a prompt that opens the thought: 22,600 tokens of thought, with interim answers."""


def scripted_thinker(answer_at: Callable[[int], str] = lambda _: "7") -> ToyEngine:
    """Returns an engine that continues every prefix of the solution with the rest of it, whatever the seed.

    `answer_at` says what it answers when it is probed after so many tokens of thought; ended by force, it answers 7.
    """

    def write(seed: int, prefix: Tokens) -> str:
        del seed
        text = _own_text(prefix)
        for cue, answer in ((PROBE, f"{answer_at(text.find(PROBE))}}} and more"), (FORCED_END, "\\boxed{7}.")):
            if cue in text:
                return answer[len(text.partition(cue)[2]) :]
        return SOLUTION[len(prefix) - len(ROOT) :]

    return ToyEngine(write)


def is_thinking(text: str) -> bool:
    """Whether a text is inside its thought, where the prompt opens it."""
    return CLOSING not in text


def limit_thoughts(*, max_tokens: int | None = None, **changes: Any) -> ThoughtBudget:
    """Returns a budget for thoughts that the prompt opens, with room for an answer of 60 tokens."""
    end = tuple(FORCED_END.encode())
    return ThoughtBudget(
        is_open=is_thinking, forced_end=end, max_tokens=max_tokens, answer_tokens=60, closing=CLOSING, **changes
    )


class RandomThinker(ToyEngine):
    """Thinks at random and answers probes.

    A letter depends on the seed, its position and the letter before, as sampled tokens do: a text is the same however
    many requests write it. `answer_at` says what a probe after so many tokens of thought answers, and with which
    log-probability; `mean_length` is that of thoughts which end by themselves.
    """

    def __init__(
        self, answer_at: Callable[[int], tuple[str, float]] = lambda _: ("7", -0.5), *, mean_length: int = 150
    ) -> None:
        super().__init__(self._write)
        self._answer_at, self._mean_length, self._longest = answer_at, mean_length, 0

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        self._longest = len(_own_text(request.prefix)) + request.params.max_tokens + 1
        generation = super().continue_prefix(request)
        text = _own_text(request.prefix)
        if PROBE in text:
            logprob = self._answer_at(text.index(PROBE))[1]
            return replace(generation, logprobs=(logprob,) * len(generation.tokens))
        start = len(request.prefix)
        logprobs = tuple(-1.0 / (1 + (start + i) % 7) for i in range(len(generation.tokens)))
        return replace(generation, logprobs=logprobs)

    def _write(self, seed: int, prefix: Tokens) -> str:
        text = before = _own_text(prefix)
        if PROBE in text:
            position, _, begun = text.partition(PROBE)
            return f"{self._answer_at(len(position))[0]}}} and more"[len(begun) :]
        while len(text) < self._longest:
            _, closing, behind = text.partition(CLOSING)
            ending = "It is \\boxed{7}." if behind.startswith("It") else f" So \\boxed{{{seed % 3}}}."
            if closing and ending.startswith(behind):
                return text[len(before) :] + ending[len(behind) :]
            if closing:
                return text[len(before) :]
            text += self._next_letter(seed, text)
        return text[len(before) :]

    def _next_letter(self, seed: int, text: str) -> str:
        begun = next((n for n in range(len(CLOSING) - 1, 0, -1) if text.endswith(CLOSING[:n])), 0)
        if begun:
            return CLOSING[begun]
        if text.endswith("\n") and not text.endswith("\n\n"):
            return "\n"
        dice = random.Random(f"{seed}:{len(text)}:{text[-1:]}")
        return "<" if dice.random() * self._mean_length < 1 else dice.choice("abcdef \n")


def _own_text(prefix: Tokens) -> str:
    """The text behind the prompt."""
    return bytes(token for token in prefix[len(ROOT) :] if token != EOS).decode("latin-1")
