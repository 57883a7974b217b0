"""The routed engine: the model that runs for a step, the accepted step, and the counts of both models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import reason
from decoding.core import GenerationRequest, SamplingParams
from reason import ConfigError
from reason.routing.base import Router, RoutingContext
from reason.routing.cue import CueRouter
from reason.routing.engine import RoutedEngine
from reason.routing.entropy import EntropyRouter
from reason.routing.fixed import SmallModelOnly, TargetModelOnly
from reason.routing.oracle import OracleRouter
from reason.routing.random_rate import RandomRouter
from reason.routing.reward_threshold import RewardThresholdRouter
from search.seeds import derive_seed
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import SearchResult
from search.tree import SearchTree, Step
from tests.support.toy_search import ROOT, ToyEngine, ToyScorer, decode_bytes, toy_resources

SAMPLING = SamplingParams(max_tokens=300)


def two_steps(model: str) -> Any:
    """Returns a generator of two steps and an answer, each with its name."""

    def write(seed: int, prefix: tuple[int, ...]) -> str:
        done = bytes(prefix).count(b"\n\n")
        rest = [f"{model} says {(seed + i) % 7}.\n\n" for i in range(done, 2)]
        return "".join(rest) + f"{model}: \\boxed{{{seed % 3}}}"

    return write


def engines(router: Router) -> tuple[ToyEngine, ToyEngine, RoutedEngine]:
    draft, target = ToyEngine(two_steps("small")), ToyEngine(two_steps("large"))
    return draft, target, RoutedEngine(draft, target, router, decode=decode_bytes, delimiter="\n\n")


def search(router: Router, strategy: Any = None) -> tuple[ToyEngine, ToyEngine, SearchResult]:
    draft, target, both = engines(router)
    scorer = ToyScorer()
    resources = toy_resources(engine=both.bind("toy?", ROOT, scorer), scorer=scorer)
    result: SearchResult = asyncio.run((strategy or Rebase(n=6))(ROOT, resources))
    result.tree.assert_invariants()
    return draft, target, result


def authors(result: SearchResult) -> list[str | None]:
    return [node.step.model for node in result.tree.nodes]


@pytest.mark.parametrize("strategy", [Rebase(n=6), BestOfN(n=6)], ids=["steps", "solutions"])
class TestModelsRun:
    def test_target_does_not_run_for_accepted_small_steps(self, strategy: Any) -> None:
        draft, target, result = search(SmallModelOnly(), strategy)
        assert draft.requests
        assert not target.requests
        assert set(authors(result)) == {"draft"}

    def test_small_model_does_not_run_where_the_router_reads_no_step(self, strategy: Any) -> None:
        draft, target, result = search(TargetModelOnly(), strategy)
        assert target.requests
        assert not draft.requests
        assert set(authors(result)) == {"target"}

    def test_target_runs_once_for_every_step_that_it_wrote(self, strategy: Any) -> None:
        draft, target, result = search(RandomRouter(rate=0.5), strategy)
        written = authors(result)
        assert set(written) == {"draft", "target"}
        assert len(target.requests) == written.count("target")
        assert len(draft.requests) == len(written)
        for node in result.tree.nodes:
            assert ("small" in node.step.text) == (node.step.model == "draft")

    def test_discarded_tokens_are_counted(self, strategy: Any) -> None:
        _, _, result = search(RandomRouter(rate=0.5), strategy)
        num_tokens = {
            model: sum(len(n.step.tokens) for n in result.tree.nodes if n.step.model == model)
            for model in ("draft", "target")
        }
        spent = result.usage
        assert spent.tokens == num_tokens["draft"] + num_tokens["target"]
        assert spent.target_tokens == num_tokens["target"]
        assert spent.small_tokens == num_tokens["draft"] + spent.discarded_tokens
        assert spent.discarded_tokens > 0


def test_oracle_router_runs_both_models_and_keeps_the_better_step() -> None:
    draft, target, result = search(OracleRouter())
    assert len(draft.requests) == len(target.requests) == len(result.tree)
    swap = {"draft": ("small", "large"), "target": ("large", "small")}
    for node in result.tree.nodes:
        assert node.step.model is not None
        assert node.step.routing_score is not None
        mine, theirs = (
            ToyScorer.score_text(text) for text in (node.step.text, node.step.text.replace(*swap[node.step.model]))
        )
        assert mine >= theirs
        assert abs(node.step.routing_score) == pytest.approx(mine - theirs, abs=2e-6)  # scores are rounded


@pytest.mark.parametrize(
    ("router", "model"),
    [
        (RandomRouter(rate=0.0), "draft"),
        (RandomRouter(rate=1.0), "target"),
        (RewardThresholdRouter(threshold=0.0), "draft"),
        (RewardThresholdRouter(threshold=1.0), "target"),
        (OracleRouter(threshold=1.0), "draft"),
        (OracleRouter(threshold=-1.0), "target"),
        (EntropyRouter(threshold=100.0), "draft"),
        (EntropyRouter(threshold=0.0), "target"),
        (CueRouter(cues=("an absent cue",)), "draft"),
        (CueRouter(cues=("small",)), "target"),
    ],
    ids=repr,
)
def test_threshold_at_its_end_leaves_one_model(router: Router, model: str) -> None:
    assert set(authors(search(router)[2])) == {model}


def test_threshold_router_decides_by_the_recorded_score() -> None:
    for node in search(RewardThresholdRouter(threshold=0.5))[2].tree.nodes:
        assert node.step.routing_score is not None
        assert (node.step.model == "target") == (node.step.routing_score < 0.5)


def test_step_models_and_routing_scores_are_saved() -> None:
    tree = search(RandomRouter(rate=0.5))[2].tree
    saved = json.loads(json.dumps(tree.to_dict()))
    back = SearchTree.from_dict(saved)
    assert [(n.step.model, n.step.routing_score) for n in back.nodes] == [
        (n.step.model, n.step.routing_score) for n in tree.nodes
    ]


def test_routed_tree_does_not_depend_on_the_order_of_branches() -> None:
    one, other = (search(RandomRouter(rate=0.5))[2].tree.to_dict() for _ in range(2))
    assert one == other


def test_empty_small_step_is_replaced_by_the_target_step() -> None:
    class Mute(ToyEngine):
        async def generate(self, requests: Any) -> Any:
            generations = await super().generate(requests)
            return [type(g)(tokens=(), logprobs=(), finish="length", usage=g.usage) for g in generations]

    both = RoutedEngine(Mute(), ToyEngine(two_steps("large")), SmallModelOnly(), decode=decode_bytes, delimiter="\n\n")
    request = GenerationRequest(prefix=ROOT, params=SAMPLING, seed=1)
    (generation,) = asyncio.run(both.bind("toy?", ROOT, None).generate([request]))
    assert {author.model for author in generation.origins} == {"target"}


def test_token_limits_and_stops_hold_across_routed_steps() -> None:
    _, _, both = engines(RandomRouter(rate=0.5))
    bound = both.bind("toy?", ROOT, None)
    for limit in (1, 9, 17, 25, 300):
        request = GenerationRequest(prefix=ROOT, params=SamplingParams(max_tokens=limit), seed=1)
        (generation,) = asyncio.run(bound.generate([request]))
        assert len(generation.tokens) <= limit
        assert generation.finish == ("eos" if limit == 300 else "length")
    stopped = GenerationRequest(prefix=ROOT, params=SamplingParams(max_tokens=300, stop=("boxed",)), seed=1)
    (generation,) = asyncio.run(bound.generate([stopped]))
    assert (generation.finish, decode_bytes(generation.tokens)[-5:]) == ("stop", "boxed")


def test_random_router_draws_by_the_seed_of_the_step() -> None:
    router = RandomRouter(rate=0.3)
    at = RoutingContext((), Step((1,), "x"), None, 12345, None)
    verdicts = [asyncio.run(router.choose_author(at)) for _ in range(3)]
    assert len({verdict.score for verdict in verdicts}) == 1
    many = [RoutingContext((), None, None, derive_seed(i), None) for i in range(2000)]
    authors = [asyncio.run(router.choose_author(at)).author for at in many]
    assert authors.count("target") / len(authors) == pytest.approx(0.3, abs=0.04)


QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def tree(*overrides: str) -> list[dict[str, Any]]:
    """Returns tokens, scores and finish reasons of a search with the bundled models."""
    with reason.load("search.n=4", *overrides) as solver:
        nodes = solver.solve(QUESTION).tree.to_dict()["nodes"]
    return [{key: node[key] for key in ("parent", "tokens", "finish")} for node in nodes]


@pytest.mark.parametrize("search_name", ["best_of_n", "rebase"])
def test_router_of_one_model_equals_the_engine_of_that_model(search_name: str) -> None:
    common = (f"search={search_name}", "speculation=off")
    assert tree(*common, "router=target_only") == tree(*common)
    assert tree(*common, "router=draft_only") == tree(*common, "model.path=bundled:draft")


@pytest.mark.parametrize("name", ["best_of_n", "beam_search", "rebase", "ets", "mcts"])
def test_speculation_does_not_change_a_routed_search(name: str) -> None:
    common = (f"search={name}", "router=arbitrage", "embedder=words")
    assert tree(*common, "speculation=stand") == tree(*common, "speculation=off")


def test_bundled_router_uses_both_models() -> None:
    """Scores lie on both sides of the threshold: neither model writes all steps."""
    with reason.load("search.n=8", "router=arbitrage", "router.threshold=0.2", "speculation=off") as solver:
        nodes = solver.solve(QUESTION).tree.nodes
    assert {node.step.model for node in nodes} == {"draft", "target"}
    routed = [(node.step.routing_score, node.step.model) for node in nodes if node.step.routing_score is not None]
    assert all((likely > 0.2) == (author == "target") for likely, author in routed)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("router=randm",), "there is no router=randm (did you mean random?)"),
        (("router=random", "router.rate=2"), "router.rate must be in [0, 1], got 2"),
        (("router=oracle", "router.threshold=3"), "router.threshold must be in [-1, 1], got 3"),
        (("router=entropy", "router.threshold=-1"), "router.threshold must be a number >= 0, got -1"),
        (("router=arbitrage", "router.path=bundled:none"), "router.path=bundled:none: not among the bundled models"),
        (("router=arbitrage", "router.path=bundled:verifier"), "router.path=bundled:verifier is a LlamaForCausalLM"),
        (("router=arbitrage", "router.threshold=2"), "router.threshold must be in [0, 1], got 2"),
        (("router=cue", "router.cues=[]"), "router.cues must hold words, got []"),
        (("router=random", "small.path=bundled:none"), "small.path=bundled:none: not among the bundled models"),
        (
            ("router=reward_threshold", "scorer=none", "search=self_consistency"),
            "this router reads scores and scorer=none gives none",
        ),
    ],
)
def test_wrong_router_setting_is_named_before_anything_loads(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reason.load(*overrides)
    assert message in str(caught.value)
