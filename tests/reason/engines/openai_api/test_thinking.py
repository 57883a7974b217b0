"""A thought that does not end is ended at its budget by prefill, and answered, over scripted conversation servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import reason
from reason.problem import Solution
from tests.support.scripted_openai_server import ScriptedOpenAIServer, read_begun_answer

THINK_TOKENS = 120
TAGS = ("<think>", "</think>")
ENDLESS = "".join(f"Case {number} leads nowhere.\n\n" for number in range(200))
FORCED_END = "\n\nI have to answer now.\n</think>\n\nThe final answer is "
ENGINE = ("engine=openai", "engine.model=toy", "engine.api=chat", "engine.prefill=true")
BUDGET = ("thinking@model.thinking=qwen3", f"model.thinking.think_tokens={THINK_TOKENS}")
SEARCHES = {
    "self_consistency": ("search=self_consistency", "search.n=2"),
    "treepo": ("search=treepo", "search.n=2"),
    "treepo over segments": ("search=treepo", "search.n=2", "step=fixed_length", "step.tokens=50"),
    "pdr": ("search=pdr", "search.n=2"),
}
"""Searches that need no scores, which no model here gives."""


def write(begun: str) -> str:
    """Thinks on for ever; behind a forced end, the answer; behind a skipped thought, notes."""
    _, forced_end, behind = begun.partition(FORCED_END)
    if forced_end:
        return "\\boxed{7}."[len(behind) :]
    return "Nothing was found out." if TAGS[1] in begun else f"<think>{ENDLESS}"[len(begun) :]


@pytest.fixture(params=["in the text", "apart", "apart, and the text behind one, too"])
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedOpenAIServer]:
    server = ScriptedOpenAIServer()
    server.write, server.pause_s = write, 0.0
    server.tags = None if request.param == "in the text" else TAGS
    server.knows_tags = not request.param.endswith("too")
    yield server
    server.close()


def solve(server: ScriptedOpenAIServer, *settings: str) -> Solution:
    with reason.load(*ENGINE, *BUDGET, f"engine.urls=[{server.url}]", *settings) as solver:
        solution = solver.solve("3+4?")
        solver.assert_invariants()
    return solution


@pytest.mark.parametrize("stream", ["null", "1"], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SEARCHES)
def test_thought_longer_than_its_budget_is_ended_by_prefill_and_answered(
    name: str, stream: str, server: ScriptedOpenAIServer
) -> None:
    solution = solve(server, *SEARCHES[name], f"engine.stream_from_tokens={stream}")
    assert {candidate.answer for candidate in solution.result.candidates} == {solution.answer} == {"7"}
    assert solution.text == "\n\nThe final answer is \\boxed{7}."
    assert solution.full_text.count("<think>") == solution.full_text.count("</think>") == 1
    thought, forced, _ = solution.full_text.partition(FORCED_END)
    assert forced
    assert f"<think>{ENDLESS}".startswith(thought)
    begun = [text for text in map(read_begun_answer, server.bodies) if text]
    assert any(text == thought + FORCED_END for text in begun)
    assert all(write("").startswith(text) or TAGS[1] in text for text in begun)
