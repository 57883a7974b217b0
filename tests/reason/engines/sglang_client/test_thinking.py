"""A thought that does not end is ended at its budget by ids, and answered, over scripted SGLang servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import reason
from reason.models.checkpoint import find_model, load_tokenizer
from reason.problem import Solution
from tests.support.scripted_sglang_server import ScriptedSGLangServer

THINK_TOKENS = 120
CHECKPOINT = find_model("bundled:thinker")
TOKENIZER = load_tokenizer(CHECKPOINT.source)
ENDLESS = "n = 5: 5 mod 3 = 2, no.\n\n" * 200
FORCED_END = "\n</think>\n\nThe answer is \\boxed{"
ENGINE = ("engine=sglang", "model=thinker", "scorer=likelihood", f"model.thinking.think_tokens={THINK_TOKENS}")
SEARCHES = {
    "self_consistency": ("search=self_consistency", "search.n=2"),
    "rebase": ("search=rebase", "search.n=2"),
    "rebase over segments": ("search=rebase", "search.n=2", "step=fixed_length", "step.tokens=50"),
    "mcts": ("search=mcts", "search.n=2"),
}


def encode(text: str) -> list[int]:
    return [*TOKENIZER.encode(text, add_special_tokens=False)]


def decode(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=False))


def write(input_ids: list[int]) -> list[int]:
    """Thinks on for ever; behind a forced end, the answer."""
    text = decode(input_ids)
    if FORCED_END in text:
        assert TOKENIZER.eos_token_id is not None
        return [*encode("7}."), TOKENIZER.eos_token_id]
    thought = encode(ENDLESS)
    return thought[len(input_ids) - len(encode(text.partition("<think>\n")[0] + "<think>\n")) :]


@pytest.fixture
def server() -> Iterator[ScriptedSGLangServer]:
    server = ScriptedSGLangServer(vocab_size=CHECKPOINT.vocab_size or 0)
    server.decode, server.write = decode, write
    yield server
    server.close()


def solve(server: ScriptedSGLangServer, *settings: str) -> Solution:
    with reason.load(*ENGINE, f"engine.urls=[{server.url}]", *settings) as solver:
        solution = solver.solve("Find the smallest n with n mod 3 = 1.")
        solver.assert_invariants()
    return solution


@pytest.mark.parametrize("stream", ["null", "1"], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SEARCHES)
def test_thought_longer_than_its_budget_is_ended_by_ids_and_answered(
    name: str, stream: str, server: ScriptedSGLangServer
) -> None:
    solution = solve(server, *SEARCHES[name], f"engine.stream_from_tokens={stream}")
    assert {candidate.answer for candidate in solution.result.candidates} == {solution.answer} == {"7"}
    assert solution.full_text.endswith(f"{FORCED_END}7}}.")
    thought = solution.thought.removesuffix("\n")
    assert ENDLESS.startswith(thought)
    assert len(encode(thought)) == THINK_TOKENS
    (answered,) = {tuple(body["input_ids"]) for body in server.generations if FORCED_END in decode(body["input_ids"])}
    prompt = answered[: -THINK_TOKENS - len(encode(FORCED_END))]
    assert list(answered) == [*prompt, *encode(ENDLESS)[:THINK_TOKENS], *encode(FORCED_END)]
    longest = max(len(body["input_ids"]) - len(prompt) for body in server.generations)
    assert longest == THINK_TOKENS + len(encode(FORCED_END))


def test_thought_within_its_budget_is_left_alone(server: ScriptedSGLangServer) -> None:
    server.write = lambda ids: [
        *encode("n = 7: yes.\n</think>\n\nThe answer is \\boxed{7}."),
        TOKENIZER.eos_token_id or 0,
    ]
    solution = solve(server, *SEARCHES["self_consistency"])
    assert (solution.answer, solution.thought) == ("7", "n = 7: yes.\n")
    assert len(server.generations) == 2
