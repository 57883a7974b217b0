"""InftyThink: the prompts are what the templates say, contexts are bounded, and every chain comes to its answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens
from search.early_exit.converged import ConvergedAnswers
from search.probes import ThoughtProbes
from search.strategies.inftythink import TEMPLATES, InftyThink
from search.strategy import Budget, SearchResult
from search.thought import ThoughtBudget
from tests.support.scripted_notes import CLOSING, is_thinking, notes_of, searching_writer, thinking_text, write_from
from tests.support.toy_search import (
    ROOT,
    ToyEngine,
    ToyScorer,
    UnsteadyEngine,
    decode_bytes,
    extract_answer,
    run_search,
    toy_text,
)

FORMS = {
    "nothing": "nothing yet.",
    "summary": "{question} Known: {summary} Thought: {thought}",
    "put_in": "\n\nWrite notes.\n{closing}\n\nNotes so far: ",
    "go_on": "{question} Notes so far: {summary}",
}


def chain(**knobs: Any) -> InftyThink:
    fields: dict[str, Any] = {
        "n": 1,
        "iterations": 8,
        "think_tokens": 100,
        "summary_tokens": 60,
        "templates": FORMS,
        "sampling": SamplingParams(max_tokens=2000),
    }
    return InftyThink(**(fields | knobs))


def search(strategy: InftyThink, target: int = 20, **fields: Any) -> tuple[SearchResult, list[str]]:
    """The result, and the prefixes of all requests as texts."""
    engine = fields.pop("engine", ToyEngine(searching_writer(target)))
    result = run_search(strategy, **({"engine": engine, "scorer": None, "problem_text": thinking_text()} | fields))
    return result, [decode_bytes(request.prefix) for request in engine.requests]


def test_summary_is_asked_for_behind_the_unfinished_thought() -> None:
    result, prefixes = search(chain(ask="put_in"))
    whole = write_from(0, 20)
    question = decode_bytes(ROOT)
    request = f"{question}{whole[:100]}\n\nWrite notes.\n{CLOSING}\n\nNotes so far: "
    assert prefixes[:2] == [question, request]
    assert prefixes[2] == f"Question: toy? Notes so far: {notes_of(6)}\n"
    assert result.candidates[0].answer == "20"
    assert result.best is not None
    assert result.tree.path_text(result.best).endswith("20 fits.</think>The answer is \\boxed{20}.")
    assert [context.purpose for context in result.tree.contexts][:2] == ["notes", "solution"]


def test_summary_is_asked_for_in_a_conversation_without_a_thought() -> None:
    result, prefixes = search(chain())
    whole = write_from(0, 20)
    shown = f"Request: toy? Known: nothing yet. Thought: {whole[:100].strip()}\n\n{CLOSING}\n"
    assert prefixes[:3] == [decode_bytes(ROOT), shown, f"Question: toy? Notes so far: {notes_of(6)}\n"]
    assert f"Known: {notes_of(6)} Thought: 7 does not fit." in prefixes[3]
    assert result.candidates[0].answer == "20"


@pytest.mark.parametrize("ask", ["prompt", "put_in"])
@given(target=st.integers(1, 60), think=st.integers(30, 200), notes=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_no_context_is_longer_than_its_bound(ask: str, target: int, think: int, notes: int) -> None:
    end = f" Enough.{CLOSING}It is "
    thought = ThoughtBudget(is_open=is_thinking, forced_end=tuple(end.encode()), max_tokens=None, answer_tokens=40)
    engine = ToyEngine(searching_writer(target))
    strategy = chain(ask=ask, think_tokens=think, summary_tokens=notes, iterations=6, n=2)
    result, _ = search(strategy, engine=engine, thought=thought)
    question, form = len("Question: toy?\n"), max(map(len, FORMS.values())) + len(f"\n{CLOSING}\n")
    assert max(len(request.prefix) for request in engine.requests) <= question + form + think + notes + len(end)
    for node in range(len(result.tree)):
        context, text = result.tree.find_context(node), result.tree.path_text(node)
        is_note = context is not None and context.purpose == "notes"
        assert len(text if is_note else text.partition(CLOSING)[0].removesuffix(" Enough.")) <= (
            notes if is_note else think
        )


@given(target=st.integers(1, 60), window=st.integers(200, 500), length=st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_prompts_leave_half_of_the_context_window(target: int, window: int, length: int) -> None:
    engine = ToyEngine(searching_writer(target))
    forms = FORMS | {"nothing": "n" * min(length, window // 4)}
    search(chain(think_tokens=90, templates=forms), engine=engine, context_window=window)
    for request in engine.requests:
        assert len(request.prefix) + request.params.max_tokens <= window
        if request.prefix.count(b"\n"[0]) < 3:  # nothing is written behind the prompt yet
            assert len(request.prefix) <= window // 2


def test_thought_of_the_last_iteration_is_ended_by_force() -> None:
    end = f" Enough.{CLOSING}It is \\boxed{{3}}."

    def write(seed: int, prefix: Tokens) -> str:
        return "" if bytes(prefix).endswith(end.encode()) else "hmm. " * 500

    thought = ThoughtBudget(is_open=is_thinking, forced_end=tuple(end.encode()), max_tokens=None, answer_tokens=40)
    result, prefixes = search(chain(iterations=3, ask="put_in"), engine=ToyEngine(write), thought=thought)
    assert result.candidates[0].answer == "3"
    assert result.best is not None
    assert result.tree.path_text(result.best) == "hmm. " * 20 + end
    assert len(prefixes) == 3 + 2 + 1  # thoughts, notes, and what follows the forced end


def test_early_exit_ends_a_thought_that_would_be_summarised() -> None:
    end, probe = f" Enough.{CLOSING}It is ", " Now? \\boxed{"
    rule = ConvergedAnswers(every=20, agree=2, probe=probe, probe_tokens=5)

    def write(seed: int, prefix: Tokens) -> str:
        text = decode_bytes(prefix)
        if text.endswith(probe):
            return "3}"
        return "\\boxed{3}." if text.endswith(end) else "hmm. " * 500

    thought = ThoughtBudget(
        is_open=is_thinking,
        forced_end=tuple(end.encode()),
        max_tokens=None,
        answer_tokens=40,
        closing=CLOSING,
        probes=ThoughtProbes(rule=rule, tokens=tuple(probe.encode()), read_answer=extract_answer),
    )
    result, _ = search(chain(think_tokens=100), engine=ToyEngine(write), thought=thought)
    assert (result.candidates[0].answer, result.tree.contexts) == ("3", [])
    assert result.tree.path_text(result.candidates[0].node) == "hmm. " * 8 + end + "\\boxed{3}."
    late, _ = search(chain(think_tokens=30), engine=ToyEngine(write), thought=thought)
    assert late.tree.contexts, "a thought that is summarised before its second probe goes on"


def test_end_of_the_token_budget_ends_a_thought_that_would_be_summarised() -> None:
    end = f" Enough.{CLOSING}It is \\boxed{{3}}."
    thought = ThoughtBudget(is_open=is_thinking, forced_end=tuple(end.encode()), max_tokens=None, answer_tokens=40)
    fields: dict[str, Any] = {"thought": thought, "budget": Budget(tokens=90)}
    result, _ = search(chain(), engine=ToyEngine(lambda *_: "hmm. " * 500), **fields)
    assert (result.stop_reason, result.candidates[0].answer) == ("budget", "3")


def test_text_behind_the_thought_is_written_to_its_end() -> None:
    length = len(write_from(0, 5)) - 8
    result, prefixes = search(chain(think_tokens=length), target=5)
    assert len(prefixes) == 2
    assert result.best is not None
    assert result.tree.path_text(result.best) == write_from(0, 5)
    assert not result.tree.contexts


def test_empty_summary_keeps_the_one_before() -> None:
    inner = searching_writer(40)
    requests: list[int] = []

    def write(seed: int, prefix: Tokens) -> str:
        if not decode_bytes(prefix).startswith("Request"):
            return inner(seed, prefix)
        requests.append(1)
        return "" if len(requests) == 2 else inner(seed, prefix)

    _, prefixes = search(chain(iterations=4), engine=ToyEngine(write))
    prompts = [prefix for prefix in prefixes if prefix.startswith("Question") and prefix.count("\n") == 1]
    assert prompts[1:3] == [f"Question: toy? Notes so far: {notes_of(6)}\n"] * 2


def test_cut_summary_is_used_as_it_is() -> None:
    _, prefixes = search(chain(summary_tokens=6, ask="put_in"))
    assert prefixes[2] == "Question: toy? Notes so far: none u\n"


def test_model_without_thoughts_is_summarised_until_its_text_ends() -> None:
    def write(seed: int, prefix: Tokens) -> str:
        text = decode_bytes(prefix)
        if text.startswith("Request"):
            return "half done"
        return "The answer is \\boxed{8}." if "half" in text else "long " * 100

    result, prefixes = search(chain(), engine=ToyEngine(write), problem_text=toy_text())
    assert result.candidates[0].answer == "8"
    assert prefixes[1] == f"Request: toy? Known: nothing yet. Thought: {('long ' * 20).strip()}\n"


@pytest.mark.parametrize("calls", range(1, 8))
def test_budget_of_calls_ends_chains_with_what_they_have(calls: int) -> None:
    result, prefixes = search(chain(n=2), budget=Budget(calls=calls))
    assert len(prefixes) == calls
    assert len(result.candidates) == min(calls, 2)
    assert result.stop_reason == "budget"


def test_chains_do_not_depend_on_the_order_of_their_replies() -> None:
    def write(seed: int, prefix: Tokens) -> str:
        return searching_writer(10 + seed % 30)(seed, prefix)

    fields: dict[str, Any] = {"scorer": ToyScorer()}
    steady, _ = search(chain(n=5), engine=ToyEngine(write), **fields)
    for seed in range(3):
        moody, _ = search(chain(n=5), engine=UnsteadyEngine(seed, write), **fields)
        assert moody.tree.to_dict() == steady.tree.to_dict()
    answers = [candidate.answer for candidate in steady.candidates]
    assert len(answers) == 5
    assert len(set(answers)) > 1
    notes = [
        node for i, node in enumerate(steady.tree.nodes) if (c := steady.tree.find_context(i)) and c.purpose == "notes"
    ]
    assert notes
    assert all(node.score is None for node in notes)


def test_search_without_texts_of_the_problem_says_so() -> None:
    with pytest.raises(ValueError, match="InftyThink writes prompts and was given no problem_text"):
        run_search(chain(), problem_text=None)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"ask": "loud"}, "ask must be one of prompt, put_in"),
        ({"iterations": 0}, "iterations must be an int >= 1"),
        ({"templates": {**TEMPLATES, "go_on": "{question}"}}, r"templates.go_on must hold \{summary\}"),
        ({"templates": {**TEMPLATES, "put_in": "{thought}"}}, r"templates.put_in cannot hold \{thought\}"),
        ({"templates": {}}, r"templates\.\w+ is missing"),
        ({"templates": {**TEMPLATES, "gone": "x"}}, "templates.'gone' is not a template"),
        ({"templates": {**TEMPLATES, "nothing": 3}}, "templates.nothing must be a text"),
        ({"templates": "x"}, "templates must be a mapping"),
    ],
)
def test_wrong_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chain(**knobs)
