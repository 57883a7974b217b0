"""Self-Refine: feedback and revision in turn, until the feedback finds no fault."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from search.strategies.self_refine import SelfRefine
from search.strategy import Budget, SearchResult
from search.thought import ThoughtBudget
from tests.support.scripted_notes import CLOSING, is_thinking, thinking_text
from tests.support.toy_search import ToyEngine, UnsteadyEngine, decode_bytes, run_search

FORMS = {"feedback": "{question} Check: {solution}", "refine": "{question} Not: {solution} Because: {feedback}"}
QUESTION = "Question: toy?\n"


def refine(**knobs: Any) -> SelfRefine:
    fields: dict[str, Any] = {
        "n": 1,
        "templates": FORMS,
        "stop_text": "Fine",
        "sampling": SamplingParams(max_tokens=200),
    }
    return SelfRefine(**(fields | knobs))


def search(strategy: SelfRefine, engine: ToyEngine, **fields: Any) -> tuple[SearchResult, list[str]]:
    """The result, and the prefixes of all requests as texts."""
    result = run_search(strategy, **({"engine": engine, "scorer": None} | fields))
    return result, [decode_bytes(request.prefix) for request in engine.requests]


def writer(*feedbacks: str, solutions: tuple[str, ...] = ("A \\boxed{1}", "B \\boxed{2}", "C \\boxed{3}")) -> ToyEngine:
    """An engine that writes these solutions and these feedbacks, one after the other."""
    more, left = list(solutions), list(feedbacks)

    def write(seed: int, prefix: Tokens) -> str:
        return left.pop(0) if decode_bytes(prefix).startswith("Request") else more.pop(0)

    return ToyEngine(write)


def test_solution_is_revised_after_feedback() -> None:
    result, prefixes = search(refine(), writer("A is bad.", "B is bad."))
    assert prefixes == [
        QUESTION,
        "Request: toy? Check: A \\boxed{1}\n",
        "Question: toy? Not: A \\boxed{1} Because: A is bad.\n",
        "Request: toy? Check: B \\boxed{2}\n",
        "Question: toy? Not: B \\boxed{2} Because: B is bad.\n",
    ]
    assert (result.candidates[0].answer, result.stop_reason) == ("3", "done")
    assert [context.purpose for context in result.tree.contexts] == ["feedback", "solution"] * 2


def test_feedback_without_faults_ends_the_revisions() -> None:
    result, prefixes = search(refine(rounds=9), writer("A is bad.", "All is FINE."))
    assert (result.candidates[0].answer, len(prefixes)) == ("2", 4)
    result, prefixes = search(refine(stop_text=None), writer("Fine.", "Fine."))
    assert (result.candidates[0].answer, len(prefixes)) == ("3", 5)


def test_empty_feedback_ends_the_revisions() -> None:
    result, prefixes = search(refine(), writer(""))
    assert (result.candidates[0].answer, len(prefixes)) == ("1", 2)


def test_latest_solution_with_an_answer_is_the_candidate() -> None:
    result, _ = search(refine(), writer("bad", "bad", solutions=("A \\boxed{1}", "B \\boxed{2}", "I give up.")))
    assert (result.candidates[0].answer, result.votes) == ("2", {"2": 1})


def test_shown_texts_are_bounded() -> None:
    engine = writer("f" * 80, "f" * 80, solutions=("s" * 100, "s" * 100, "s"))
    _, prefixes = search(refine(solution_tokens=30, feedback_tokens=20), engine)
    assert prefixes[1:3] == [
        f"Request: toy? Check: {'s' * 30}\n",
        f"Question: toy? Not: {'s' * 30} Because: {'f' * 20}\n",
    ]
    _, prefixes = search(refine(), writer("f" * 80, "f" * 80, solutions=("s" * 99, "s" * 99, "s")), context_window=200)
    assert all(len(prefix) <= 100 for prefix in prefixes if prefix.count("\n") == 1)


def test_feedback_of_a_thinking_model_is_what_follows_its_thought() -> None:
    thought = ThoughtBudget(is_open=is_thinking, forced_end=tuple(b" So:</think>"), max_tokens=40, answer_tokens=20)
    engine = writer(
        "hmm " * 30, "Too short.", f"It is right.{CLOSING}Fine.", solutions=(f"x{CLOSING}A", f"y{CLOSING}B")
    )
    _, prefixes = search(refine(), engine, problem_text=thinking_text(), thought=thought)
    assert prefixes[1] == "Request: toy? Check: A\n"
    assert prefixes[2] == f"Request: toy? Check: A\n{'hmm ' * 10}\n{CLOSING}\n\n"
    assert prefixes[3] == "Question: toy? Not: A Because: Too short.\n"
    assert len(prefixes) == 5


@pytest.mark.parametrize("calls", range(1, 6))
def test_budget_of_calls_ends_with_the_last_solution(calls: int) -> None:
    result, prefixes = search(refine(), writer("bad", "bad"), budget=Budget(calls=calls))
    assert len(prefixes) == calls
    assert result.candidates[0].answer == {1: "1", 2: "1", 3: "2", 4: "2", 5: "3"}[calls]


def test_chains_do_not_depend_on_the_order_of_their_replies() -> None:
    steady = run_search(refine(n=4, stop_text="5"))
    assert len(steady.candidates) == 4
    for seed in range(3):
        assert (
            run_search(refine(n=4, stop_text="5"), engine=UnsteadyEngine(seed)).tree.to_dict() == steady.tree.to_dict()
        )


@pytest.mark.parametrize("stop_text", ["", " ", 3])
def test_wrong_stop_text_is_named(stop_text: Any) -> None:
    with pytest.raises(ValueError, match="stop_text must be a text or null"):
        refine(stop_text=stop_text)
