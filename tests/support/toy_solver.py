"""A solver over the toy engine and the toy scorer, without any model."""

from __future__ import annotations

from typing import Any

from decoding.core import Tokens
from reason.prompt import PromptFormat
from reason.scorers.none import NoScorer
from reason.solver import Solver
from search.strategies.best_of_n import BestOfN
from search.strategy import Strategy
from tests.support.toy_search import ToyEngine, ToyScorer, decode_bytes


class BytePrompt:
    """Encodes a question as its bytes; the question `bad` raises."""

    format = PromptFormat()

    def encode(self, question: str) -> Tokens:
        if question == "bad":
            raise RuntimeError("this one breaks")
        return tuple(f"Question: {question}\n".encode())

    def encode_request(self, text: str) -> Tokens:
        return self.encode(text)

    def encode_text(self, text: str) -> Tokens:
        return tuple(text.encode())

    def decode(self, tokens: Tokens) -> str:
        return decode_bytes(tokens)

    def encode_continuation(self, text: str) -> Tokens:
        return tuple(text.encode())

    def decode_last_turn(self, prompt: Tokens) -> str:
        return decode_bytes(prompt)


class ToyScorerFactory(NoScorer):
    """Binds every question to the toy scorer."""

    def bind(self, question: str, prompt: Tokens) -> Any:
        return ToyScorer()


def toy_solver(strategy: Strategy | None = None, **changes: Any) -> Solver:
    """Returns a solver, by default best-of-4; `changes` are arguments of `Solver`."""
    arguments: dict[str, Any] = {"engine": ToyEngine(), "scorer": ToyScorerFactory(), "prompt": BytePrompt()}
    return Solver(strategy=strategy or BestOfN(n=4), **(arguments | changes))
