"""A small model writes, a router reads, a large one rewrites: who is run, who is kept, and what it is counted as."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import reason
from decoding.core import GenerationRequest, SamplingParams
from reason import ConfigError
from reason.routing.base import Crossroads, Router
from reason.routing.cue import Cue
from reason.routing.engine import Arbitrage
from reason.routing.entropy import Entropy
from reason.routing.fixed import DraftOnly, TargetOnly
from reason.routing.oracle import Oracle
from reason.routing.random_rate import RandomRate
from reason.routing.reward_threshold import RewardThreshold
from search.seeds import derive_seed
from search.strategies.best_of_n import BestOfN
from search.strategies.rebase import Rebase
from search.strategy import SearchResult
from search.tree import SearchTree, Step
from tests.support.toy_search import ROOT, ToyEngine, ToyScorer, decode, resources

SAMPLING = SamplingParams(max_tokens=300)


def two_steps(who: str) -> Any:
    """A writer of two steps and an answer, each signed."""

    def write(seed: int, prefix: tuple[int, ...]) -> str:
        done = bytes(prefix).count(b"\n\n")
        rest = [f"{who} says {(seed + i) % 7}.\n\n" for i in range(done, 2)]
        return "".join(rest) + f"{who}: \\boxed{{{seed % 3}}}"

    return write


def engines(router: Router) -> tuple[ToyEngine, ToyEngine, Arbitrage]:
    draft, target = ToyEngine(two_steps("small")), ToyEngine(two_steps("large"))
    return draft, target, Arbitrage(draft, target, router, decode=decode, delimiter="\n\n")


def search(router: Router, strategy: Any = None) -> tuple[ToyEngine, ToyEngine, SearchResult]:
    draft, target, both = engines(router)
    scorer = ToyScorer()
    given = resources(engine=both.bind("toy?", ROOT, scorer), scorer=scorer)
    result: SearchResult = asyncio.run((strategy or Rebase(n=6))(ROOT, given))
    result.tree.check()
    return draft, target, result


def authors(result: SearchResult) -> list[str | None]:
    return [node.step.author for node in result.tree.nodes]


@pytest.mark.parametrize("strategy", [Rebase(n=6), BestOfN(n=6)], ids=["steps", "solutions"])
class TestWhoIsRun:
    def test_the_target_is_really_not_run_for_steps_that_stay(self, strategy: Any) -> None:
        draft, target, result = search(DraftOnly(), strategy)
        assert draft.requests
        assert not target.requests
        assert set(authors(result)) == {"draft"}

    def test_the_draft_is_not_asked_where_nothing_is_read(self, strategy: Any) -> None:
        draft, target, result = search(TargetOnly(), strategy)
        assert target.requests
        assert not draft.requests
        assert set(authors(result)) == {"target"}

    def test_the_target_runs_once_for_every_step_that_it_wrote(self, strategy: Any) -> None:
        draft, target, result = search(RandomRate(rate=0.5), strategy)
        written = authors(result)
        assert set(written) == {"draft", "target"}
        assert len(target.requests) == written.count("target")
        assert len(draft.requests) == len(written)
        for node in result.tree.nodes:
            assert ("small" in node.step.text) == (node.step.author == "draft")

    def test_what_was_thrown_away_is_counted(self, strategy: Any) -> None:
        _, _, result = search(RandomRate(rate=0.5), strategy)
        kept = {
            who: sum(len(n.step.tokens) for n in result.tree.nodes if n.step.author == who)
            for who in ("draft", "target")
        }
        spent = result.spent
        assert spent.tokens == kept["draft"] + kept["target"]
        assert spent.target_tokens == kept["target"]
        assert spent.draft_tokens == kept["draft"] + spent.discarded_tokens
        assert spent.discarded_tokens > 0


def test_both_write_for_the_oracle_and_the_better_stays() -> None:
    draft, target, result = search(Oracle())
    assert len(draft.requests) == len(target.requests) == len(result.tree)
    swap = {"draft": ("small", "large"), "target": ("large", "small")}
    for node in result.tree.nodes:
        assert node.step.author is not None
        assert node.step.route is not None
        mine, theirs = (
            ToyScorer.of(text) for text in (node.step.text, node.step.text.replace(*swap[node.step.author]))
        )
        assert mine >= theirs
        assert abs(node.step.route) == pytest.approx(mine - theirs)


@pytest.mark.parametrize(
    ("router", "who"),
    [
        (RandomRate(rate=0.0), "draft"),
        (RandomRate(rate=1.0), "target"),
        (RewardThreshold(threshold=0.0), "draft"),
        (RewardThreshold(threshold=1.0), "target"),
        (Oracle(threshold=1.0), "draft"),
        (Oracle(threshold=-1.0), "target"),
        (Entropy(threshold=100.0), "draft"),
        (Entropy(threshold=0.0), "target"),
        (Cue(cues=("nobody says this",)), "draft"),
        (Cue(cues=("small",)), "target"),
    ],
    ids=repr,
)
def test_a_threshold_at_its_end_leaves_one_author(router: Router, who: str) -> None:
    assert set(authors(search(router)[2])) == {who}


def test_the_threshold_decides_by_the_score_and_the_score_is_told() -> None:
    for node in search(RewardThreshold(threshold=0.5))[2].tree.nodes:
        assert node.step.route is not None
        assert (node.step.author == "target") == (node.step.route < 0.5)


def test_authors_are_on_disk() -> None:
    tree = search(RandomRate(rate=0.5))[2].tree
    saved = json.loads(json.dumps(tree.to_dict()))
    back = SearchTree.from_dict(saved)
    assert [(n.step.author, n.step.route) for n in back.nodes] == [(n.step.author, n.step.route) for n in tree.nodes]


def test_the_same_seed_gives_the_same_tree_however_branches_interleave() -> None:
    one, other = (search(RandomRate(rate=0.5))[2].tree.to_dict() for _ in range(2))
    assert one == other


def test_a_draft_with_nothing_to_say_is_the_targets_step() -> None:
    class Mute(ToyEngine):
        async def generate(self, requests: Any) -> Any:
            found = await super().generate(requests)
            return [type(g)(tokens=(), logprobs=(), finish="length", spent=g.spent) for g in found]

    both = Arbitrage(Mute(), ToyEngine(two_steps("large")), DraftOnly(), decode=decode, delimiter="\n\n")
    request = GenerationRequest(prefix=ROOT, params=SAMPLING, seed=1)
    (generation,) = asyncio.run(both.bind("toy?", ROOT, None).generate([request]))
    assert {author.author for author in generation.authors} == {"target"}


def test_limits_and_stops_hold_across_steps() -> None:
    _, _, both = engines(RandomRate(rate=0.5))
    bound = both.bind("toy?", ROOT, None)
    for limit in (1, 9, 17, 25, 300):
        request = GenerationRequest(prefix=ROOT, params=SamplingParams(max_tokens=limit), seed=1)
        (generation,) = asyncio.run(bound.generate([request]))
        assert len(generation.tokens) <= limit
        assert generation.finish == ("eos" if limit == 300 else "length")
    stopped = GenerationRequest(prefix=ROOT, params=SamplingParams(max_tokens=300, stop=("boxed",)), seed=1)
    (generation,) = asyncio.run(bound.generate([stopped]))
    assert (generation.finish, decode(generation.tokens)[-5:]) == ("stop", "boxed")


def test_a_route_has_the_same_number_wherever_it_is_drawn() -> None:
    router = RandomRate(rate=0.3)
    at = Crossroads((), Step((1,), "x"), None, 12345, None)
    verdicts = [asyncio.run(router.read(at)) for _ in range(3)]
    assert len({verdict.score for verdict in verdicts}) == 1
    many = [Crossroads((), None, None, derive_seed(i), None) for i in range(2000)]
    authors = [asyncio.run(router.read(at)).author for at in many]
    assert authors.count("target") / len(authors) == pytest.approx(0.3, abs=0.04)


QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def tree(*overrides: str) -> list[dict[str, Any]]:
    """Tokens, scores and ends of a search with the bundled models."""
    with reason.load("search.n=4", *overrides) as solver:
        nodes = solver.solve(QUESTION).tree.to_dict()["nodes"]
    return [{key: node[key] for key in ("parent", "tokens", "finish")} for node in nodes]


@pytest.mark.parametrize("search_name", ["best_of_n", "rebase"])
def test_one_author_alone_writes_what_its_own_engine_would_have(search_name: str) -> None:
    common = (f"search={search_name}", "speculation=off")
    assert tree(*common, "router=target_only") == tree(*common)
    assert tree(*common, "router=draft_only") == tree(*common, "model.path=bundled:draft")


@pytest.mark.parametrize("name", ["best_of_n", "beam_search", "rebase", "ets", "mcts"])
def test_speculation_changes_nothing_of_a_routed_search(name: str) -> None:
    common = (f"search={name}", "router=arbitrage", "embedder=words")
    assert tree(*common, "speculation=stand") == tree(*common, "speculation=off")


def test_the_bundled_router_sends_some_steps_either_way() -> None:
    """The threshold decides, and so does the step: neither model writes all."""
    with reason.load("search.n=8", "router=arbitrage", "router.threshold=0.2", "speculation=off") as solver:
        nodes = solver.solve(QUESTION).tree.nodes
    assert {node.step.author for node in nodes} == {"draft", "target"}
    told = [(node.step.route, node.step.author) for node in nodes if node.step.route is not None]
    assert all((likely > 0.2) == (author == "target") for likely, author in told)


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
        (("router=random", "draft.path=bundled:none"), "draft.path=bundled:none: not among the bundled models"),
        (
            ("router=reward_threshold", "scorer=none", "search=self_consistency"),
            "this router reads scores and scorer=none gives none",
        ),
    ],
)
def test_a_wrong_setting_is_named_before_anything_loads(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reason.load(*overrides)
    assert message in str(caught.value)
