"""A plain function is an engine: it writes solutions, goes on behind them, and judges."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import reason
from decoding.core import GenerationRequest, SamplingParams
from reason.config import plugins
from reason.engines.function import FunctionEngine
from reason.models.byte_tokenizer import ByteTokenizer

MODULE = """
import asyncio
import threading

done = threading.Event()

def write(messages, *, temperature, max_tokens, stop, seed):
    last = messages[-1]
    if "Is this solution correct" in last["content"]:
        return "yes" if "{42}" in last["content"] else "no"
    if last["role"] == "assistant":
        return "The answer is \\\\boxed{42}."
    return "I think so.\\n\\nThe answer is \\\\boxed{%d}." % (42 if seed % 3 else 41)

async def write_later(messages, **options):
    return write(messages, **options)

def write_number(messages, **options):
    return 42

def write_never(messages, **options):
    done.wait(300)

async def write_never_later(messages, **options):
    await asyncio.sleep(300)

def give_up(messages, **options):
    raise TimeoutError("its own")

def rate(question, steps):
    return [0.5] * len(steps)

def fail(messages, **options):
    raise RuntimeError("out of order")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Settings with the plug-in; it is no plug-in of later tests."""
    monkeypatch.setattr(plugins, "trusted_modules", set(plugins.trusted_modules))
    (tmp_path / "my_model.py").write_text(MODULE)
    yield [f"plugins=[{tmp_path}/my_model.py]", "engine=function", "engine.function=my_model:write"]
    sys.modules.pop("my_model", None)


def solve(*overrides: str) -> reason.Solution:
    with reason.load(*overrides) as solver:
        return solver.solve("6*7?")


def test_it_writes_solutions_that_vote(module: list[str]) -> None:
    for name in ("write", "write_later"):
        solution = solve(*module, f"engine.function=my_model:{name}", "search=self_consistency", "search.n=9")
        assert solution.answer == "42"
        assert sum(solution.votes.values()) == 9
        assert "41" in solution.votes


def test_it_judges(module: list[str]) -> None:
    small = ["engine@small=function", "small.function=my_model:write", "small.path=bytes"]
    solution = solve(*module, *small, "search.n=6", "scorer=judge", "scorer.model=small")
    assert {c.answer: c.score for c in solution.result.candidates} == {"42": 1.0, "41": 0.0}


def test_a_search_over_steps_needs_a_function_that_continues(module: list[str]) -> None:
    search = ["search=beam_search", "search.n=4", "scorer=function", "scorer.function=my_model:rate"]
    with pytest.raises(reason.ConfigError, match=r"search=beam_search continues earlier output; set engine\.continues"):
        reason.load(*module, *search)
    solution = solve(*module, *search, "engine.continues=true")
    texts = {solution.tree.path_text(leaf) for leaf in solution.tree.finished_leaves()}
    assert texts == {"I think so.\n\nThe answer is \\boxed{42}."}


def answer_42(messages: list[dict[str, str]], *, seed: int, **options: object) -> str:
    return "yes" if "Is this solution correct" in messages[-1]["content"] else rf"It is \boxed{{{41 + seed % 2}}}."


def test_functions_of_load_write_score_and_judge() -> None:
    """Each as it would by name; a class that can be called is a function, too."""

    class Scores42:
        def __call__(self, question: str, steps: list[str]) -> float:
            return float("42" in steps[-1])

    votes = reason.solve("6*7?", "search=self_consistency", "search.n=9", engine=answer_42).votes
    assert set(votes) == {"41", "42"}
    scored = reason.solve("6*7?", "search.n=9", engine=answer_42, scorer=Scores42())
    assert {c.answer: c.score for c in scored.result.candidates} == {"41": 0.0, "42": 1.0}
    judged = reason.solve("6*7?", "search.n=4", engine=answer_42, judge=lambda messages, **options: "no")
    assert {c.score for c in judged.result.candidates} == {0.0}


def test_function_judges_a_model_that_is_here() -> None:
    """Its prompts are plain text and its tokens are drafted; the function gets conversations all the same."""
    requests: list[str] = []

    def approve(messages: list[dict[str, str]], **options: object) -> str:
        requests.append(messages[-1]["content"])
        return "yes"

    result = reason.solve("What is 3+4?", "search.n=4", "controller=fixed", judge=approve).result
    assert {c.score for c in result.candidates} == {1.0}
    assert requests
    assert all("3+4" in text for text in requests)
    assert not any(text.startswith("Question: ") for text in requests)
    assert result.usage.drafted > 0


def test_settings_of_a_function_of_load_stay_settings() -> None:
    with reason.load("search=self_consistency", "engine.max_calls=2", engine=answer_42) as solver:
        assert solver.solve("6*7?").answer in ("41", "42")
    with pytest.raises(reason.ConfigError, match=r"engine is set twice; a function given to load sets it"):
        reason.load("engine=local", engine=answer_42)
    with pytest.raises(reason.ConfigError, match=r"scorer is set twice"):
        reason.load(engine=answer_42, scorer=answer_42, judge=answer_42)
    with pytest.raises(reason.ConfigError, match=r"scorer must be a function; an option is a text, load"):
        reason.load(scorer="prm")  # type: ignore[arg-type]
    with pytest.raises(reason.ConfigError, match=r"search=beam_search continues earlier output"):
        reason.load("search=beam_search", engine=answer_42, scorer=answer_42)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.function=null", r"engine\.function must be set, to MODULE:NAME"),
        ("engine.function=write", r"engine\.function must be MODULE:NAME"),
        ("engine.function=os:remove", r"engine\.function must be of a module that plugins lists"),
        ("engine.function=my_model:nothing", "my_model has no function nothing"),
        ("model=bundled", "it goes with model=served"),
        ("engine.max_calls=0", r"engine\.max_calls must be an int >= 1"),
    ],
)
def test_wrong_settings_are_refused(module: list[str], override: str, message: str) -> None:
    with pytest.raises(reason.ConfigError, match=message):
        reason.load(*module, override)


def test_what_the_function_raises_or_returns_is_an_error_of_the_problem(module: list[str]) -> None:
    with pytest.raises(ValueError, match=r"must return the text of an answer, got 42"):
        solve(*module, "engine.function=my_model:write_number", "search=self_consistency")
    with pytest.raises(RuntimeError, match="out of order"):
        solve(*module, "engine.function=my_model:fail", "search=self_consistency")


def test_calls_beyond_the_limit_wait() -> None:
    running, most, lock = 0, 0, threading.Lock()
    gate = threading.Barrier(2, timeout=30)

    def write(messages: object, **options: object) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait()  # passes only while two run
        with lock:
            running -= 1
        return "Done."

    prompt = tuple(ByteTokenizer().encode('{"messages": [{"role": "user", "content": "1"}]}\x1e'))
    requests = [GenerationRequest(prefix=prompt, params=SamplingParams(stop=("e",)), seed=seed) for seed in range(6)]
    engine = FunctionEngine(write, 2)
    try:
        generations = asyncio.run(engine.generate(requests))
    finally:
        engine.close()
    assert most == 2
    assert {(ByteTokenizer().decode(g.tokens), g.finish) for g in generations} == {("Done", "stop")}


def test_call_that_is_too_slow_ends_with_the_budget_of_the_search(module: list[str]) -> None:
    begin = time.monotonic()
    for name in ("write_never", "write_never_later"):
        search = ["search=self_consistency", "search.n=2", "engine.max_calls=1", "budget.seconds=0.3"]
        with reason.load(*module, f"engine.function=my_model:{name}", *search) as solver:
            result = solver.solve("6*7?").result
        assert result.stop_reason == "budget"
        assert result.best is None
    assert time.monotonic() - begin < 60


def test_timeout_of_the_function_itself_is_its_error(module: list[str]) -> None:
    with pytest.raises(TimeoutError, match="its own"):
        solve(*module, "engine.function=my_model:give_up", "search=self_consistency", "budget.seconds=600")
