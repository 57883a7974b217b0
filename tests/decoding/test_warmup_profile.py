"""On a machine that has not run the sources before, loops are compiled at the start and not in the first request."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

import pytest

import reason
from decoding import compile_beside, compiled, compiling_process
from decoding.round import Speculation
from decoding.speculation.acceptance.greedy_match import GreedyMatch
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.hybrid import HybridSource
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.warmup_profile import compile_loops, name_loops, profile_rounds, runs_a_model
from reason.settings import solve_spec
from tests.support.fakes import HashBackend
from tests.support.scarce_memory import ScarceDrafter

# one branch: when a second one joins it is a matter of timing, and with it what is drafted
SETTINGS = ("search.n=1", "speculation=stand", "controller=fixed", "scorer=likelihood")
QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def parts_of(drafter: Any) -> Speculation:
    return Speculation(drafter, FixedController(4))


class ModelSource(DraftModel):
    """A draft model as the settings make it."""

    needs_model = True


def test_rounds_draft_whatever_the_controller_makes_of_it() -> None:
    drafter = ScarceDrafter(TreeDrafter(SuffixDecoding()), lambda call, size: True)
    compile_loops(HashBackend(scale=0.0), Speculation(drafter, FixedController(0)))
    assert sum(len(outcome.draft) for outcome in drafter.observed) > 0


def test_models_of_drafters_are_known() -> None:
    model, suffix = ModelSource(HashBackend()), SuffixDecoding()
    assert runs_a_model(TreeDrafter(model))
    assert runs_a_model(TreeDrafter(HybridSource((suffix, model))))
    assert not runs_a_model(TreeDrafter(suffix))
    assert not runs_a_model(Speculation().drafter)


def test_other_parts_are_compiled_apart() -> None:
    backend = HashBackend()
    parts = [parts_of(TreeDrafter(source, draw="likely")) for source in (SuffixDecoding(), PromptLookup())]
    names = {name_loops(backend, one) for one in (Speculation(), *parts, replace(parts[0], acceptance=GreedyMatch()))}
    assert len(names) == 4
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_compiling_is_announced_and_changes_neither_texts_nor_drafts(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(compiled, "is_compiled_ahead", lambda loops: is_compiled or loops in notes)
    monkeypatch.setattr(compiled, "note_compiled", notes.append)
    counts = []
    for _ in range(2):
        with caplog.at_level(logging.INFO), reason.load(*SETTINGS) as solver:
            solver.solve(QUESTION)
            stats = solver.engine.stats
            counts.append((stats.tokens, stats.drafted, stats.accepted))
    # with drafts by a drafter that had seen other texts before these numbers would differ
    assert counts[0] == counts[1]
    assert counts[0][1] > 0
    announced = [message for message in caplog.messages if "compiling for this machine" in message]
    assert bool(announced) != is_compiled
    # of the layers and of rounds, each once
    assert len(notes) == 0 if is_compiled else len(set(notes)) == len(notes) == 2


def test_a_first_start_need_not_wait_for_drafts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_ended = False
    monkeypatch.setattr(compiled, "is_compiled_ahead", lambda loops: False)
    monkeypatch.setattr(solve_spec, "start_compiling_drafts", lambda cores, is_awaited: None)
    monkeypatch.setattr(compiling_process, "is_compiling_drafts", lambda: not has_ended)
    monkeypatch.setattr(compile_beside, "may_begin_without", lambda loops: True)
    results = []
    with caplog.at_level(logging.INFO), reason.load(*SETTINGS) as solver:
        results.append(solver.solve(QUESTION))
        assert solver.engine.stats.drafted == 0
        has_ended = True
        results.append(solver.solve(QUESTION))
        assert solver.engine.stats.drafted > 0
    assert results[0].text == results[1].text
    assert "still being compiled" in caplog.text


def test_each_count_of_rows_is_timed_with_and_without_drafts() -> None:
    costs = profile_rounds(HashBackend(), row_counts=(1, 4, 24, 64))
    sizes = {(cost.num_branches, cost.num_tokens) for cost in costs}
    assert {(1, 1), (4, 4), (24, 24), (64, 64), (1, 4), (6, 24), (16, 64)} <= sizes
