"""A routed engine knows the author of every earlier step, and collected pairs have texts and authors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from reason.routing.base import BoundRouter, RoutingContext, RoutingDecision, StatelessRouter, StepsRead
from reason.routing.engine import RoutedEngine
from reason.routing.pairs import PairCollector
from reason.routing.random_rate import RandomRouter
from reason.routing.step_authors import StepAuthors
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import SearchResult
from search.tree import Step
from tests.support.toy_search import ROOT, ToyEngine, ToyScorer, decode_bytes, toy_resources


def write_steps(name: str) -> Any:
    """Returns a generator of three steps and an answer, each with the name of its model."""

    def write(seed: int, prefix: tuple[int, ...]) -> str:
        rest = [f"{name} says {(seed + i) % 7}.\n\n" for i in range(bytes(prefix).count(b"\n\n"), 3)]
        return "".join(rest) + f"{name}: \\boxed{{{seed % 3}}}"

    return write


@dataclass
class SpyingRouter(StatelessRouter):
    """Routes at random and keeps every context."""

    contexts: list[RoutingContext] = field(default_factory=list)
    steps_read: ClassVar[StepsRead] = "both"

    async def choose_author(self, context: RoutingContext) -> RoutingDecision:
        self.contexts.append(context)
        return await RandomRouter(rate=0.5).choose_author(context)


def run_search(router: Any, strategy: Any) -> SearchResult:
    both = RoutedEngine(
        ToyEngine(write_steps("small")), ToyEngine(write_steps("large")), router, decode=decode_bytes, delimiter="\n\n"
    )
    scorer = ToyScorer()
    result: SearchResult = asyncio.run(
        strategy(ROOT, toy_resources(engine=both.bind("toy?", ROOT, scorer), scorer=scorer))
    )
    return result


@pytest.mark.parametrize("strategy", [Rebase(n=8), BestOfN(n=8)], ids=["steps", "solutions"])
def test_router_reads_the_author_of_each_earlier_step(strategy: Any) -> None:
    """The text of a toy step begins with the name of its model, so it says what the author must be."""
    router = SpyingRouter()
    run_search(router, strategy)
    earlier = [step for context in router.contexts for step in context.previous_steps]
    assert {step.model for step in earlier} == {"draft", "target"}
    for step in earlier:
        assert step.model == {"small": "draft", "large": "target"}[step.text.split()[0]]
    for context in router.contexts:
        assert context.small_step is not None
        assert context.target_step is not None
        assert (context.small_step.model, context.target_step.model) == ("draft", "target")


def test_author_is_that_of_the_step_after_these_very_steps() -> None:
    a, b = Step((1,), "a", model="draft"), Step((2,), "b", model="target")
    authors = StepAuthors()
    authors.record((), a)
    authors.record((a,), b)
    plain = [replace(step, model=None) for step in (a, b, a)]
    assert [step.model for step in authors.name_authors(plain)] == ["draft", "target", None]
    assert [step.model for step in authors.name_authors(plain[1:])] == [None, None]


def test_pair_has_question_texts_and_authors() -> None:
    collector = PairCollector()
    run_search(collector, BestOfN(n=4))
    pairs = collector.take_pairs("")
    assert {len(pair.step_lengths) for pair in pairs} > {0, 1}
    for pair in pairs:
        begin = len(pair.prefix) - sum(pair.step_lengths)
        assert pair.question == "toy?"
        assert "".join(pair.texts) == decode_bytes(pair.prefix[begin:] + pair.small_step)
        names = [{"small": "draft", "large": "target"}[text.split()[0]] for text in pair.texts[:-1]]
        assert list(pair.authors) == names


def test_collector_of_one_problem_is_a_bound_router() -> None:
    bound: BoundRouter = PairCollector().bind("toy?", ROOT)
    assert bound.steps_read == "both"
