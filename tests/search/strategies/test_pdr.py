"""Parallel-Distill-Refine: what the workspace holds under each setting, its bound, and which solutions vote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens
from search.strategies.pdr import DISTILLATIONS, TEMPLATES, Pdr
from search.strategy import Budget, SearchResult
from tests.support.scripted_notes import CLOSING, notes_of, searching_writer, thinking_text
from tests.support.toy_search import ROOT, ToyEngine, ToyScorer, UnsteadyEngine, decode_bytes, run_search, toy_text

FORMS = {
    "draft": "[{number}: {text}]",
    "answer": "{answer} x{count}/{total}",
    "nothing": "nothing yet.",
    "summary": "{question} Drafts: {drafts}",
    "put_in": "\n\nWrite notes.\n{closing}\n\nNotes so far: ",
    "refine": "{question} Known: {workspace}",
}
QUESTION = "Question: toy?\n"


def pdr(**knobs: Any) -> Pdr:
    fields: dict[str, Any] = {"n": 3, "templates": FORMS, "sampling": SamplingParams(max_tokens=300)}
    return Pdr(**(fields | knobs))


def write_drafts(*drafts: str, refined: str = "So \\boxed{9}.", summary: str = "They differ.") -> ToyEngine:
    """An engine whose first drafts are these, in the order of their requests."""
    left = list(drafts)

    def write(seed: int, prefix: Tokens) -> str:
        text = decode_bytes(prefix)
        if text.startswith("Request"):
            return summary
        return left.pop(0) if text == QUESTION else refined

    return ToyEngine(write)


def search(strategy: Pdr, engine: ToyEngine, **fields: Any) -> tuple[SearchResult, list[str]]:
    """The result, and the prefixes of all requests as texts."""
    result = run_search(strategy, **({"engine": engine, "scorer": None} | fields))
    return result, [decode_bytes(request.prefix) for request in engine.requests]


def test_summary_of_all_drafts_starts_the_next_ones() -> None:
    result, prefixes = search(pdr(), write_drafts("One.", "Two.", "Three."))
    shown = "Request: toy? Drafts: [1: One.]\n\n[2: Two.]\n\n[3: Three.]\n"
    assert prefixes == [QUESTION] * 3 + [shown] + ["Question: toy? Known: They differ.\n"] * 3
    notes, solution = result.tree.contexts
    assert (notes.purpose, notes.sources, solution.purpose, solution.sources) == ("notes", (0, 1, 2), "solution", (3,))
    assert [c.node for c in result.candidates] == [4, 5, 6]
    assert result.votes == {"9": 3}


@pytest.mark.parametrize("distill", ["summary", "top_k", "random_k", "answers"])
def test_last_round_may_have_another_width(distill: str) -> None:
    strategy = pdr(n=4, rounds=3, last_n=1, distill=distill, select="majority")
    result, prefixes = search(strategy, write_drafts(*["One."] * 4))
    assert len([prefix for prefix in prefixes if not prefix.startswith("Request")]) == 4 + 4 + 1
    assert len(result.candidates) == 1
    assert len(search(pdr(n=4, rounds=1, last_n=1), write_drafts(*["One."] * 4))[0].candidates) == 4


def test_answers_of_the_drafts_are_counted() -> None:
    _, prefixes = search(pdr(distill="answers"), write_drafts("\\boxed{4}", "none", "\\boxed{4}"))
    assert prefixes[3:] == ["Question: toy? Known: 4 x2/3\n"] * 3
    _, prefixes = search(pdr(distill="answers"), write_drafts("none", "none", "none"))
    assert prefixes[3:] == ["Question: toy? Known: nothing yet.\n"] * 3


def test_best_drafts_are_those_with_the_highest_scores_or_else_the_most_votes() -> None:
    drafts = ("a \\boxed{4}", "b \\boxed{5}", "c \\boxed{5}")
    _, prefixes = search(pdr(distill="top_k"), write_drafts(*drafts))
    assert prefixes[3:] == ["Question: toy? Known: [1: b \\boxed{5}]\n\n[2: c \\boxed{5}]\n"] * 3
    best = max(drafts, key=ToyScorer.score_text)
    _, prefixes = search(pdr(distill="top_k", top_k=1, select="weighted"), write_drafts(*drafts), scorer=ToyScorer())
    assert prefixes[3:] == [f"Question: toy? Known: [1: {best}]\n"] * 3


def test_random_drafts_differ_between_the_next_ones_and_repeat_for_a_seed() -> None:
    drafts = [f"draft {i}" for i in range(8)]
    strategy = pdr(n=8, distill="random_k")
    runs = [search(strategy, write_drafts(*drafts), seed=seed)[1][8:] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) > 2
    assert all(prefix.count("draft ") == 2 for prefix in runs[0])


def test_one_draft_that_is_shown_again_is_sequential_refine() -> None:
    strategy = pdr(n=1, distill="top_k", top_k=1, rounds=3)
    result, prefixes = search(strategy, write_drafts("First."))
    assert prefixes == [QUESTION, "Question: toy? Known: [1: First.]\n", "Question: toy? Known: [1: So \\boxed{9}.]\n"]
    assert len(result.candidates) == 1


def test_notes_are_asked_for_behind_unfinished_thoughts() -> None:
    strategy = pdr(n=2, distill="notes", think_tokens=70, workspace_tokens=100)
    result, prefixes = search(strategy, ToyEngine(searching_writer(8)), problem_text=thinking_text())
    assert all(prefix.endswith(f"\n\nWrite notes.\n{CLOSING}\n\nNotes so far: ") for prefix in prefixes[2:4])
    known = f"[1: {notes_of(4)}]\n\n[2: {notes_of(4)}]"
    assert prefixes[4:] == [f"Question: toy? Known: {known}\n"] * 2
    sources = result.tree.contexts[-1].sources
    assert [result.tree.path_text(node) for node in sources] == [notes_of(4)] * 2
    assert [result.tree.nodes[node].parent for node in sources] == [-2, -3]
    alone, _ = search(replace(strategy, n=1), ToyEngine(searching_writer(8)), problem_text=thinking_text())
    assert alone.votes == {"8": 1}


def test_finished_drafts_give_their_texts_as_notes() -> None:
    strategy = pdr(n=1, distill="notes", think_tokens=70)
    _, prefixes = search(strategy, ToyEngine(searching_writer(2)), problem_text=thinking_text())
    assert prefixes[1:] == ["Question: toy? Known: [1: The answer is \\boxed{2}.]\n"]


def test_only_the_text_behind_a_thought_is_shown_and_of_an_unfinished_thought_its_end() -> None:
    def draft(text: str) -> str:
        engine = write_drafts(text)
        return search(pdr(n=1, draft_tokens=12), engine, problem_text=thinking_text())[1][1]

    assert draft(f"hmm{CLOSING}It is 12.") == f"Request: toy? Drafts: [1: It is 12.]\n\n{CLOSING}\n"
    assert draft("a long thought that never ends") == f"Request: toy? Drafts: [1: t never ends]\n\n{CLOSING}\n"


@pytest.mark.parametrize("distill", DISTILLATIONS)
@given(
    size=st.integers(1, 80),
    shown=st.integers(1, 60),
    length=st.integers(1, 200),
    n=st.integers(1, 5),
    window=st.none() | st.integers(400, 700),
)
@settings(max_examples=25, deadline=None)
def test_workspace_is_bounded(distill: str, size: int, shown: int, length: int, n: int, window: int | None) -> None:
    strategy = pdr(n=n, rounds=3, distill=distill, workspace_tokens=size, draft_tokens=shown, think_tokens=50)
    engine = ToyEngine(lambda seed, _: f"\\boxed{{{seed % 7}}}" + "x" * length)
    result, _ = search(strategy, engine, context_window=window)
    for context in result.tree.contexts:
        if context.purpose == "solution":
            assert len(context.text) <= len("toy? Known: ") + max(size, len("nothing yet."))
        elif context.after is None:
            assert len(context.text) <= len("toy? Drafts: ") + n * (shown + len("[1: ]\n\n"))
    assert window is None or all(len(r.prefix) + r.params.max_tokens <= window for r in engine.requests)


def test_answers_of_the_round_before_count_where_the_last_one_gives_none() -> None:
    result, _ = search(pdr(), write_drafts("\\boxed{4}", "\\boxed{4}", "\\boxed{5}", refined="I am lost."))
    assert (result.votes, len(result.candidates)) == ({"4": 2, "5": 1}, 3)


@pytest.mark.parametrize("calls", range(1, 8))
def test_budget_of_calls_ends_with_the_last_drafts_there_are(calls: int) -> None:
    result, prefixes = search(pdr(), write_drafts(*["\\boxed{4}"] * 3), budget=Budget(calls=calls))
    assert len(prefixes) == calls
    assert set(result.votes) == {"4" if calls < 5 else "9"}
    assert result.stop_reason == ("done" if calls == 7 else "budget")


@pytest.mark.parametrize("distill", DISTILLATIONS)
def test_rounds_do_not_depend_on_the_order_of_replies(distill: str) -> None:
    strategy = pdr(n=4, rounds=3, distill=distill, think_tokens=20)
    steady = run_search(strategy)
    for seed in range(3):
        assert run_search(strategy, engine=UnsteadyEngine(seed)).tree.to_dict() == steady.tree.to_dict()


def test_equal_drafts_of_a_round_share_one_prompt() -> None:
    result, _ = search(pdr(), write_drafts("One.", "Two.", "Three."))
    last = [candidate.node for candidate in result.candidates]
    assert {result.tree.nodes[node].parent for node in last} == {-3}
    assert result.tree.unique_tokens(last) == len("Question: toy? Known: They differ.\n") + result.tree.count_tokens(
        last
    )


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"distill": "magic"}, "distill must be one of summary, top_k, random_k, answers, notes"),
        ({"distill": "notes"}, "distill=notes asks unfinished drafts for notes; set think_tokens"),
        ({"last_n": 0}, "last_n must be an int >= 1 or null"),
        ({"rounds": 0}, "rounds must be an int >= 1"),
        ({"templates": {**TEMPLATES, "refine": "{question} {draft}"}}, r"templates.refine must hold \{workspace\}"),
        ({"templates": {**TEMPLATES, "draft": "{text} {draft}"}}, r"templates.draft cannot hold \{draft\}; it has"),
    ],
)
def test_wrong_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pdr(**knobs)


def test_texts_are_not_read_for_places() -> None:
    text = toy_text(question="What is {workspace} in \\boxed{x}?")
    _, prefixes = search(pdr(n=1), ToyEngine(lambda *_: "a {drafts} {closing}"), problem_text=text)
    assert decode_bytes(ROOT) == prefixes[0]
    assert prefixes[1] == "Request: What is {workspace} in \\boxed{x}? Drafts: [1: a {drafts} {closing}]\n"
    assert prefixes[2] == "Question: What is {workspace} in \\boxed{x}? Known: a {drafts} {closing}\n"
