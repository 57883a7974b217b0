"""Two models write in turns: by the entropy of the last tokens, or by the words at the beginning of paragraphs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reason
from decoding.core import FinishReason, Generation, GenerationRequest, SamplingParams, Tokens, Usage
from reason import ConfigError
from reason.routing.entropy_adaptive import EntropyAdaptiveRouter
from reason.routing.handover import HandoverEngine, HandoverRouter
from reason.routing.speculative_thinking import SpeculativeThinkingRouter
from tests.support.toy_search import decode_bytes

ROOT = (1, 2, 3)
END = 0
RECAP = "Hm:\n\n"


@dataclass
class Writer:
    """Writes the token that `choose` names for each position behind the prompt, with the entropy that goes with it."""

    choose: Callable[[Tokens], tuple[int, float]]
    requests: list[GenerationRequest] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.requests += requests
        return [self.write(request) for request in requests]

    def write(self, request: GenerationRequest) -> Generation:
        tokens: list[int] = []
        entropies: list[float] = []
        finish: FinishReason = "length"
        while len(tokens) < request.params.max_tokens and finish == "length":
            token, entropy = self.choose((*request.prefix[len(ROOT) :], *tokens))
            tokens.append(token)
            entropies.append(entropy)
            if token == END:
                finish = "eos"
            elif any(stop in decode_bytes(tuple(tokens)) for stop in request.params.stop):
                finish = "stop"
        return Generation(
            tokens=tuple(tokens),
            logprobs=(-1.0,) * len(tokens),
            finish=finish,
            usage=Usage(calls=1, tokens=len(tokens), forwards=len(tokens)),
            entropies=np.array(entropies, dtype=np.float32) if request.num_top else None,
        )


def write_in_turns(
    router: HandoverRouter, small: Writer, target: Writer, *, max_tokens: int = 60, stop: tuple[str, ...] = ()
) -> Generation:
    engine = HandoverEngine(
        {"draft": small, "target": target}, router, ROOT, decode_bytes, lambda text: (*text.encode(),)
    )
    params = SamplingParams(max_tokens=max_tokens, stop=stop)
    (generation,) = asyncio.run(engine.generate([GenerationRequest(prefix=ROOT, params=params, seed=1)]))
    assert generation.usage.tokens == len(generation.tokens) <= max_tokens
    assert generation.origins[-1].end == len(generation.tokens)
    return generation


def unsure(model: int, seed: int) -> Writer:
    """A model that writes its own letter, with entropies that depend on the model and the position."""

    def choose(before: Tokens) -> tuple[int, float]:
        return 97 + model, random.Random(f"{model} {len(before)} {seed}").choice([0.0, 0.0, 0.5, 2.0, 3.0])

    return Writer(choose)


@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 6), st.integers(1, 20), st.sampled_from([0.3, 1.0, 1.7]))
def test_turns_are_those_of_a_decision_after_every_token_whatever_is_generated_at_once(
    seed: int, window: int, min_stay: int, chunk: int, threshold: float
) -> None:
    router = EntropyAdaptiveRouter(threshold=threshold, window=window, min_stay=min_stay, chunk=chunk)
    writers = [unsure(0, seed), unsure(1, seed)]
    done = write_in_turns(router, *writers)
    expected: list[int] = []
    latest: list[float] = []
    model = stay = 0
    while len(expected) < 60:
        token, entropy = writers[model].choose(tuple(expected))
        expected.append(token)
        latest.append(entropy)
        stay += 1
        is_unsure = sum(latest[-window:]) / len(latest[-window:]) > threshold
        if stay >= min_stay and is_unsure == (model == 0):
            model, stay = 1 - model, 0
    assert list(done.tokens) == expected
    written = [sum(len(g.tokens) for g in [w.write(r) for r in w.requests]) for w in writers]
    assert sum(written) == done.usage.tokens + done.usage.discarded_tokens
    assert written == [done.usage.small_tokens, done.usage.target_tokens]
    if chunk == 1:
        assert done.usage.discarded_tokens == 0


def test_tokens_that_are_certain_to_stay_come_in_one_request() -> None:
    """Up to `min_stay`; and the target's, while zeros could not bring the mean below the threshold."""
    small, target = Writer(lambda _: (97, 2.0)), Writer(lambda _: (98, 2.0))
    router = EntropyAdaptiveRouter(threshold=0.5, window=8, min_stay=5)
    done = write_in_turns(router, small, target, max_tokens=60)
    assert [request.params.max_tokens for request in small.requests] == [5]
    # of eight entropies of 2.0 two keep the mean at 0.5: after six zeros a handover is possible
    assert {request.params.max_tokens for request in target.requests[:-1]} == {6}
    assert done.usage.discarded_tokens == 0
    greedy = write_in_turns(EntropyAdaptiveRouter(threshold=0.5, min_stay=5, chunk=32), small, target, max_tokens=60)
    assert (greedy.tokens, greedy.usage.discarded_tokens) == (done.tokens, 27)


@pytest.mark.parametrize(("threshold", "letter", "author"), [(100.0, "a", {"draft"}), (0.0, "b", {"draft", "target"})])
def test_model_that_writes_all_turns_writes_its_own_solution(threshold: float, letter: str, author: set[str]) -> None:
    small, target = Writer(lambda _: (97, 1.0)), Writer(lambda _: (98, 1.0))
    done = write_in_turns(EntropyAdaptiveRouter(threshold=threshold, min_stay=1, window=1), small, target)
    assert decode_bytes(done.tokens[1:]) == letter * 59
    assert {origin.model for origin in done.origins} == author


def scripted(text: str) -> Writer:
    """A model that writes this text from wherever its own paragraphs are, then ends."""
    ids = [*text.encode(), END]
    return Writer(lambda before: (ids[len(before)] if len(before) < len(ids) else END, 0.0))


def always_doubts() -> Writer:
    """A model that writes the paragraph "but" again and again."""

    def choose(before: Tokens) -> tuple[int, float]:
        text = decode_bytes(before)
        rest = {"b": "u", "u": "t", "t": "\n"}.get(text[-1:], "b")
        return ord("\n" if text.endswith("t\n") else rest), 0.0

    return Writer(choose)


ROUTER = SpeculativeThinkingRouter(look_tokens=6, verify_tokens=12, doubts=99, most_doubts=99)


def test_target_writes_the_beginning_of_a_paragraph_of_doubt_anew() -> None:
    small, target = scripted("one two.\n\nwait, no\n\nsix"), scripted("ONE TWO.\n\nTHREE, \n\n\nSIX")
    done = write_in_turns(ROUTER, small, target)
    assert decode_bytes(done.tokens) == "one two.\n\nTHREE,no\n\nsix"
    assert [origin.model for origin in done.origins] == ["draft", "draft", "target", "draft", "draft"]
    assert done.usage.discarded_tokens == 6


def test_target_goes_on_where_the_small_model_verifies() -> None:
    small, target = scripted("check it now, and then"), scripted("CHECK IT NOW, AND THEN")
    assert decode_bytes(write_in_turns(ROUTER, small, target).tokens) == "CHECK IT NOW, and then"


def test_recap_is_put_in_after_many_doubts_and_later_ones_come_later() -> None:
    router = SpeculativeThinkingRouter(
        look_tokens=4,
        doubts=2,
        doubts_step=1,
        most_doubts=9,
        recap_tokens=3,
        recap_step=2,
        most_recap_tokens=5,
        recap=RECAP,
    )
    text = decode_bytes(write_in_turns(router, always_doubts(), always_doubts(), max_tokens=90).tokens)
    first, second, third, *_ = text.split(RECAP)
    assert [part.count("but") for part in (first, second, third)] == [2, 3, 4]


def test_one_step_at_a_time_decides_as_for_the_whole() -> None:
    router = SpeculativeThinkingRouter(
        look_tokens=4, doubts=2, doubts_step=0, recap_tokens=3, recap_step=0, recap=RECAP
    )
    writer = always_doubts()
    whole = decode_bytes(write_in_turns(router, writer, writer, max_tokens=60).tokens)
    engine = HandoverEngine(
        {"draft": writer, "target": writer}, router, ROOT, decode_bytes, lambda text: (*text.encode(),)
    )
    tokens: Tokens = ()
    while len(tokens) < 50:
        params = SamplingParams(max_tokens=60 - len(tokens), stop=("\n\n",))
        request = GenerationRequest(prefix=ROOT + tokens, params=params, seed=1)
        tokens += asyncio.run(engine.generate([request]))[0].tokens
    assert whole.startswith(decode_bytes(tokens)[:50])


def test_recap_that_ended_a_step_is_followed_by_the_target() -> None:
    router = SpeculativeThinkingRouter(look_tokens=4, recap_tokens=3, recap=RECAP)
    turn = router.start(f"one\n\n{RECAP}").begin()
    assert (turn.author, turn.max_tokens, turn.inject) == ("target", 3, "")


@pytest.mark.parametrize("router", ["entropy_adaptive", "speculative_thinking"])
def test_bundled_models_write_in_turns(router: str) -> None:
    settings = ["search=self_consistency", "search.n=2", "scorer=none", "speculation=off", f"router={router}"]
    if router == "entropy_adaptive":
        settings += ["router.threshold=0.2", "router.min_stay=2"]
    with reason.load(*settings) as solver:
        solution = solver.solve("What is the remainder when 7^2 is divided by 5?")
        solver.assert_invariants()
    usage = solution.usage
    assert usage.small_tokens > 0
    assert usage.target_tokens >= 0
    assert {node.step.model for node in solution.result.tree.nodes} <= {"draft", "target"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("router=entropy_adaptive", "router.window=0"), "window must be an int >= 1"),
        (("router=speculative_thinking", "router.cues=['']"), "cues must hold words"),
        (("router=speculative_thinking", "router.recap=''"), "recap must not be empty"),
        (("router=entropy_adaptive", "small.vocabulary=own"), "hands over inside them"),
    ],
)
def test_wrong_settings_are_named(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reason.load(*settings)
