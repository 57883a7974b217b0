"""Planning-guided decoding: its bound, the places it tries, what is written once only, and its ends."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.core import FinishReason, Generation, GenerationRequest, SamplingParams, Tokens, Usage
from search.strategies.pg_td import PgTd
from search.strategies.pg_td_rules import LikelyRow, Place, choose_token, token_bound
from search.strategies.pg_td_tokens import GivenTokens
from search.strategy import Budget, ScoredPaths, SearchResult
from search.tree import Step
from tests.support.toy_search import EOS, ROOT, ToyEngine, ToyScorer, run_search

END_TOKENS = frozenset({EOS})
LENGTH = 9
SAMPLING = SamplingParams(max_tokens=40)


@lru_cache(maxsize=100_000)
def next_tokens(text: bytes, width: int = 4) -> tuple[tuple[int, float], ...]:
    """The likely tokens behind a text, best first: letters, a blank line after each third, an answer and an end."""
    rng = random.Random(text)
    if text.endswith(b"}"):
        return ((EOS, -0.01),)
    if len(text.replace(b"\n", b"")) >= LENGTH:
        return tuple((token, -0.1 - i) for i, token in enumerate(b"13"))
    if text and text[-1:] != b"\n" and len(text.replace(b"\n", b"")) % 3 == 0:
        return ((ord("\n"), -0.01),)
    if text.endswith(b"\n") and not text.endswith(b"\n\n"):
        return ((ord("\n"), -0.01),)
    return tuple(zip(rng.sample(list(b"abcdef"), width), (-0.5, -1.2, -2.5, -3.0), strict=True))


class LikelyEngine(ToyEngine):
    """Writes the likeliest token of `next_tokens` and says what the others are; ends with `EOS`."""

    def continue_prefix(self, request: GenerationRequest) -> Generation:
        assert request.params.temperature == 0
        assert request.names_top
        text, rows, finish = bytes(request.prefix[len(ROOT) :]), [], "length"
        tokens = list[int]()
        while len(tokens) < request.params.max_tokens and finish == "length":
            rows.append(next_tokens(text) if len(text.replace(b"\n", b"")) < LENGTH + 1 else ((EOS, -0.01),))
            tokens.append(rows[-1][0][0])
            text += bytes(tokens[-1:])
            finish = "eos" if tokens[-1] == EOS else "length"
        ids = np.full((len(rows), request.num_top), -1, dtype=np.int32)
        logprobs = np.full((len(rows), request.num_top), np.nan, dtype=np.float32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = [token for token, _ in row[: request.num_top]]
            logprobs[i, : len(row)] = [logprob for _, logprob in row[: request.num_top]]
        reason: FinishReason = "eos" if finish == "eos" else "length"
        return Generation(
            tokens=tuple(tokens),
            logprobs=tuple(float(row[0]) for row in logprobs),
            finish=reason,
            usage=Usage(calls=1, tokens=len(tokens)),
            top_logprobs=logprobs,
            top_ids=ids,
            entropies=np.ones(len(rows), dtype=np.float32),
        )


class MoodyLikelyEngine(LikelyEngine):
    """The same, whose requests complete in another order than they start."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        for _ in range(len(self.requests) * 7 % 5):
            await asyncio.sleep(0)
        return await super().generate(requests)


@dataclass
class LetterScorer(ToyScorer):
    """A solution is as good as its share of the letter `a`."""

    async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
        texts = ["".join(step.text for step in path) for path in paths]
        return ScoredPaths([[text.count("a") / LENGTH] * len(path) for text, path in zip(texts, paths, strict=True)])


def read_digit(text: str) -> str | None:
    digits = [c for c in text if c.isdigit()]
    return digits[-1] if digits else None


def run(strategy: PgTd, **changes: Any) -> SearchResult:
    fields: dict[str, Any] = {
        "engine": LikelyEngine(),
        "scorer": LetterScorer(),
        "end_tokens": END_TOKENS,
        "extract_answer": read_digit,
    }
    return run_search(strategy, **(fields | changes))


def texts(result: SearchResult) -> list[str]:
    return [result.tree.path_text(candidate.node) for candidate in result.candidates]


def likely(*pairs: tuple[int, float]) -> LikelyRow:
    ids, logprobs = zip(*pairs, strict=True)
    return LikelyRow(np.array(ids, dtype=np.int32), np.array(logprobs, dtype=np.float32), 1.0)


@given(
    st.integers(1, 1000),
    st.integers(0, 50),
    st.none() | st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 50),
    st.floats(0, 8),
)
def test_bound_is_the_best_value_and_a_weight_that_grows_slowly_with_the_visits(
    visits: int, returns: int, best: float | None, prior: float, base: float, exploration: float
) -> None:
    bound = token_bound(
        Place(visits=visits), Place(returns=returns, best=best), prior, base=base, exploration=exploration
    )
    weight = exploration + math.log(1 + (visits + 1) / base)
    assert bound == pytest.approx((best or 0) + weight * prior * math.log(visits) ** 0.5 / (returns + 1))


def test_token_that_is_not_among_the_likely_ones_is_never_chosen() -> None:
    place = Place(next_tokens=likely((7, -0.1), (8, -3.0), (9, -4.0)), visits=100)
    place.below = {7: Place(returns=60, best=0.2), 8: Place(returns=1, best=0.1), 9: Place(returns=0, best=1.0)}
    assert choose_token(place, width=2, base=10, exploration=0) == 7
    assert choose_token(place, width=2, base=10, exploration=50) == 8
    assert choose_token(place, width=3, base=10, exploration=0) == 9
    with pytest.raises(ValueError, match="its likely tokens are not known"):
        choose_token(Place(), width=2, base=10, exploration=0)


def test_first_solution_is_the_greedy_one_and_all_differ() -> None:
    result = run(PgTd(n=12, sampling=SAMPLING))
    greedy = ""
    while not greedy.endswith("}") and len(greedy.replace("\n", "")) <= LENGTH:
        greedy += chr(next_tokens(greedy.encode())[0][0])
    assert texts(result)[0] == greedy
    assert len(set(texts(result))) == 12
    assert all(candidate.answer is not None for candidate in result.candidates)


def test_every_solution_is_one_that_likely_tokens_make_and_its_ending_is_greedy() -> None:
    result = run(PgTd(n=16, branching=2, sampling=SAMPLING))
    for text in texts(result):
        ranks = [
            [token for token, _ in next_tokens(text[:i].encode())].index(ord(char))
            for i, char in enumerate(text)
            if len(text[:i].replace("\n", "")) <= LENGTH
        ]
        assert max(ranks) <= 1


def test_search_finds_better_solutions_than_the_greedy_one() -> None:
    result = run(PgTd(n=64, exploration=0.5, sampling=SAMPLING))
    scores = [candidate.score or 0.0 for candidate in result.candidates]
    assert result.score == max(scores) > scores[0]


def test_given_tokens_are_not_generated_again() -> None:
    engine = LikelyEngine()
    result = run(PgTd(n=12, sampling=SAMPLING), engine=engine)
    lengths = [result.tree.nodes[candidate.node].num_path_tokens for candidate in result.candidates]
    assert result.usage.tokens < sum(lengths)
    prefixes = [request.prefix for request in engine.requests]
    assert len(set(prefixes)) == len(prefixes)  # no beginning is completed twice
    assert result.usage.tokens == result.usage.calls + sum(lengths) - sum(
        len(prefix) - len(ROOT) + 1 for prefix in prefixes
    )


def test_steps_that_solutions_share_are_in_the_tree_once() -> None:
    result = run(PgTd(n=24, sampling=SAMPLING))
    paths = [
        tuple(node.step.tokens for node in map(result.tree.nodes.__getitem__, result.tree.path_nodes(i)))
        for i in range(len(result.tree))
    ]
    whole = [path for path, node in zip(paths, result.tree.nodes, strict=True) if node.finish is None]
    assert len(set(whole)) == len(whole)
    assert len(result.tree) < sum(len(result.tree.path_nodes(c.node)) for c in result.candidates)


def test_tree_does_not_depend_on_timing() -> None:
    steady, moody = (
        run(PgTd(n=20, sampling=SAMPLING), engine=engine()) for engine in (LikelyEngine, MoodyLikelyEngine)
    )
    assert steady.tree.to_dict() == moody.tree.to_dict()


def test_simulations_end_where_all_is_known() -> None:
    result = run(PgTd(n=50, branching=1, simulations=200, sampling=SAMPLING))
    assert len(result.candidates) == 1
    assert len(run(PgTd(n=50, simulations=3, parallel=1, sampling=SAMPLING)).candidates) <= 3


@pytest.mark.parametrize("budget", [Budget(tokens=60), Budget(calls=4), Budget(tokens=1)])
def test_search_ends_at_its_budget(budget: Budget) -> None:
    result = run(PgTd(n=50, sampling=SAMPLING), budget=budget)
    assert result.stop_reason == "budget"
    assert budget.tokens is None or result.usage.tokens <= budget.tokens
    assert budget.calls is None or result.usage.calls <= budget.calls


def test_solution_that_its_limit_cuts_is_a_leaf_and_the_search_goes_on() -> None:
    result = run(PgTd(n=6, sampling=SamplingParams(max_tokens=5)))
    assert len(result.candidates) == 6
    assert {result.tree.nodes[candidate.node].num_path_tokens for candidate in result.candidates} == {5}


def test_missing_and_invalid_scores_do_not_end_a_search() -> None:
    class Moody(LetterScorer):
        async def score(self, paths: Sequence[Sequence[Step]]) -> ScoredPaths:
            scored = await super().score(paths)
            odd = [
                None if "b" in p[0].text else [float("nan")] * len(p) if "c" in p[0].text else s
                for p, s in zip(paths, scored.scores, strict=True)
            ]
            return ScoredPaths(odd)

    result = run(PgTd(n=12, sampling=SAMPLING), scorer=Moody())
    assert len(result.candidates) == 12
    assert result.best is not None


def test_engine_that_does_not_name_likely_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="search=pg_td needs the ids of likely tokens"):
        run(PgTd(n=2), engine=ToyEngine(measures=False))


@given(st.integers(0, 8), st.integers(1, 12), st.integers(0, 3))
def test_given_tokens_begin_the_generation_wherever_a_request_begins(at: int, max_tokens: int, num_given: int) -> None:
    tokens = tuple(b"abc"[:num_given])
    begun = Generation(tokens=tokens, logprobs=(-1.0,) * num_given, finish="length")
    engine = GivenTokens(LikelyEngine(), {5: (ROOT, begun)})
    prefix = ROOT + tokens[:at]
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    request = GenerationRequest(prefix=prefix, params=params, seed=5, num_top=2)
    (generation,) = asyncio.run(engine.generate([request]))
    written: Tokens = tokens[at:][:max_tokens]
    assert generation.tokens[: len(written)] == written
    assert len(generation.tokens) <= max_tokens
    if max_tokens > len(written):
        assert generation.tokens[len(written)] == next_tokens(bytes(tokens))[0][0]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"branching": 0}, "branching must be an int >= 1, got 0"),
        ({"branching": 21}, "branching must be an int from 1 to 20, got 21"),
        ({"base": 0}, "base must be"),
        ({"exploration": -1}, "exploration must be"),
        ({"simulations": 70_000}, "simulations must be an int from 1 to 65536, got 70000"),
        ({"select": "loud"}, "select must be"),
    ],
)
def test_wrong_knobs_are_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PgTd(**knobs)
