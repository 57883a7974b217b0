"""A solver with a thinking format: where the answer is read, what is a thought and what is text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from reason.problem import Problem, Solution
from reason.thinking import SolutionReader, ThinkingFormat
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.tree import SearchTree, Step
from tests.support.toy_search import ToyEngine, decode_bytes
from tests.support.toy_solver import toy_solver

FORM = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>", answer_tokens=0)
THOUGHT = "Maybe \\boxed{4}.\n\nNo, \\boxed{5}.\n\n"
ANSWER = "\n\nThe answer is \\boxed{7}."
OPEN_PROMPT = tuple(b"Question: 3+4? <think>\n")


def solve(text: str, *, prompt: Tokens | None = None, **changes: Any) -> Solution:
    def write(seed: int, prefix: Tokens) -> str:
        start = len(prompt) if prompt else len("Question: 3+4?\n")
        return text[len(prefix) - start :]

    problem = Problem.from_question("3+4?", prompt=prompt)
    arguments: dict[str, Any] = {"engine": ToyEngine(write), "thinking": FORM, "strategy": BestOfN(n=2)}
    with toy_solver(**(arguments | changes)) as solver:
        return solver.solve(problem)


@pytest.mark.parametrize("strategy", [BestOfN(n=2), Rebase(n=2)])
def test_answer_is_read_behind_the_thought(strategy: Any) -> None:
    solution = solve(f"<think>{THOUGHT}</think>{ANSWER}", strategy=strategy)
    assert (solution.answer, solution.thought, solution.text) == ("7", THOUGHT, ANSWER)
    assert solution.full_text == f"<think>{THOUGHT}</think>{ANSWER}"
    assert solution.votes.keys() == {"7"}


def test_prompt_given_as_ids_may_open_the_thought() -> None:
    solution = solve(f"{THOUGHT}</think>{ANSWER}", prompt=OPEN_PROMPT)
    assert (solution.answer, solution.thought, solution.text) == ("7", THOUGHT, ANSWER)


def test_answer_in_an_unfinished_thought_votes_only_where_that_is_set() -> None:
    solution = solve(THOUGHT, prompt=OPEN_PROMPT)
    assert (solution.answer, solution.thought, solution.text, solution.votes) == (None, THOUGHT, "", {})
    interim = solve(THOUGHT, prompt=OPEN_PROMPT, thinking=replace(FORM, interim_answers=True))
    assert (interim.answer, interim.thought, interim.text) == ("5", THOUGHT, "")


def test_finished_thought_without_an_answer_behind_it_has_none() -> None:
    solution = solve(f"{THOUGHT}</think>I do not know.", prompt=OPEN_PROMPT)
    assert (solution.answer, solution.text) == (None, "I do not know.")


def test_model_without_thoughts_reads_the_whole_solution() -> None:
    text = f"<think>{THOUGHT}</think>The answer is 12."
    solution = solve(text, thinking=None)
    assert (solution.thought, solution.text) == ("", text)


def test_thought_cut_by_a_limit_has_no_text() -> None:
    strategy = BestOfN(n=2, sampling=SamplingParams(max_tokens=20))
    solution = solve(f"<think>{THOUGHT}</think>{ANSWER}", strategy=strategy)
    assert (solution.answer, solution.text) == (None, "")


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_tokens_of_a_thought_are_counted_up_to_its_closing_tag(size: int) -> None:
    """The tags are several tokens, and steps end anywhere, also inside the closing tag."""
    inside, text = f"<think>{THOUGHT}</think>", ANSWER
    tree, node = SearchTree((1,)), SearchTree.ROOT
    for start in range(0, len(inside + text), size):
        piece = (inside + text)[start : start + size]
        node = tree.add_node(node, Step(text=piece, tokens=tuple(piece.encode())))
    reader = SolutionReader(FORM, False, decode_bytes)
    counts = reader.count_thought_tokens(tree, node)
    assert sum(counts.values()) == len(inside)
    assert counts == reader.measure_thought(tree, node)  # one token per letter
    assert SolutionReader().count_thought_tokens(tree, node) == {}


@pytest.mark.parametrize("opening", ["", "<think>"])
@pytest.mark.parametrize("strategy_class", [BestOfN, Rebase])
def test_endless_thought_is_ended_and_answered(opening: str, strategy_class: Any) -> None:
    """Whether the prompt opens the thought or the model itself."""
    form = ThinkingFormat(opening="<think>", closing="</think>", forced_end=" Enough.</think>So ", answer_tokens=60)
    prompt = tuple(f"Question: 3+4?{'' if opening else ' <think>'}\n".encode())

    def write(seed: int, prefix: Tokens) -> str:
        text = bytes(prefix[len(prompt) :]).decode()
        return "\\boxed{7}." if text.endswith("</think>So ") else (opening + "hmm " * 500)[len(text) :]

    strategy = strategy_class(n=2, sampling=SamplingParams(max_tokens=400))
    arguments: dict[str, Any] = {"engine": ToyEngine(write), "thinking": form, "strategy": strategy}
    for think_tokens in (100, None):
        arguments["thinking"] = replace(form, think_tokens=think_tokens)
        with toy_solver(**arguments) as solver:
            solution = solver.solve(Problem.from_question("3+4?", prompt=prompt))
            other = solver.solve(Problem.from_question("3+4?", prompt=prompt))
        assert solution.answer == "7"
        assert (solution.text, other.text) == ("So \\boxed{7}.", "So \\boxed{7}.")
        assert solution.thought.endswith(" Enough.")
    arguments |= {"thinking": form, "ends_thoughts": False}
    with toy_solver(**arguments) as solver:
        assert solver.solve(Problem.from_question("3+4?", prompt=prompt)).answer is None
