"""Before the loops of drafts are compiled rounds have no drafts and learn nothing; texts are the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from decoding.core import Generation
from decoding.round import Speculation
from decoding.speculation.controllers.draft_memory import DraftMemory
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.memory import MemoryController
from decoding.speculation.controllers.until_compiled import PlainUntilCompiled
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import BatchLoad, Controller
from tests.support.engines import make_request, open_engine
from tests.support.fakes import HashBackend
from tests.support.scarce_memory import ScarceDrafter

TOKENS = 40


@dataclass
class CompiledLater:
    """Says once for each of the first `rounds` questions that loops are not compiled; one question is a round."""

    rounds: int
    num_questions: int = 0

    def __call__(self) -> bool:
        self.num_questions += 1
        return self.num_questions > self.rounds


def generate(controller: Controller) -> tuple[list[Generation], ScarceDrafter]:
    drafter = ScarceDrafter(TreeDrafter(SuffixDecoding(), draw="likely"), lambda call, size: True)
    backend = HashBackend(scale=0.0)
    requests = [make_request((1, 2, 3, 1, 2), seed=seed, max_tokens=TOKENS) for seed in range(3)]
    with open_engine(backend, speculation=Speculation(drafter, controller)) as engine:
        return asyncio.run(engine.generate(requests)), drafter


@pytest.mark.parametrize("rounds", [0, 7, 2 * TOKENS])
def test_texts_are_the_same_whenever_drafts_begin(rounds: int) -> None:
    expected, _ = generate(FixedController(4))
    later = CompiledLater(rounds)
    generations, drafter = generate(PlainUntilCompiled(FixedController(4), later))
    assert [one.tokens for one in generations] == [one.tokens for one in expected]
    assert bool(drafter.proposals) == bool(drafter.observed) == (rounds < TOKENS)
    if rounds < TOKENS:
        assert later.num_questions == rounds + 1  # not again once they are
        assert min(len(outcome.branch.tokens) for outcome in drafter.observed) >= rounds


def test_the_first_rounds_write_a_token_each() -> None:
    generations, drafter = generate(PlainUntilCompiled(FixedController(4), CompiledLater(2 * TOKENS)))
    assert all(one.usage.forwards == TOKENS and not one.usage.drafted for one in generations)
    assert not drafter.observed


def test_a_controller_of_memory_inside_is_given_the_sizes_of_the_model() -> None:
    generations, _ = generate(PlainUntilCompiled(MemoryController(FixedController(4)), CompiledLater(1)))
    assert sum(one.usage.drafted for one in generations) > 0
    plain = PlainUntilCompiled(FixedController(4), CompiledLater(0))
    plain.set_memory(DraftMemory(kv_bytes=1, vocabulary=2))  # one without a limit has no use for it
    assert plain.plan_drafts([], BatchLoad(0, 0, 0, 0)).max_total == 0
