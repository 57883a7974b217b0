"""Every drafter with every controller gives the tokens of plain decoding."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.round import Speculation
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from reason.config.compose import list_options, load_option
from reason.engines import speculation
from tests.support.acceptance_rules import DRAFT_INDEPENDENT
from tests.support.engines import TOKENIZER, open_engine
from tests.support.fakes import HashBackend

VOCABULARY = 32
SOURCES = [  # without those that need models of their own
    name for name in list_options("speculation") if "DraftModelSource" not in str(load_option("speculation", name))
]
SQUEEZES: dict[float, list[dict[str, Any]]] = {
    0.0: [{"max_running_requests": 3}],  # others join as branches leave
    0.6: [{"max_batched_tokens": 9}, {}],  # prompts are filled in pieces; room for all
    1.0: [{"kv_bytes": 130}],  # branches wait for pages
}
SHAPE = {"parents": [-1, 0, -1, 1, 0, 2], "ranks": [0, 0, 1, 0, 1, 0]}


def requests_at(temperature: float) -> list[GenerationRequest]:
    """Branches of two problems, each of them twice: the second time every text is a repetition."""
    rng, requests = random.Random(int(10 * temperature)), []
    prompts = [tuple(rng.randrange(6) for _ in range(rng.randint(12, 30))) for _ in range(2)]
    for seed in range(5):
        problem = rng.randrange(2)
        filters: dict[str, Any] = rng.choice([{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
        stop: tuple[str, ...] = rng.choice([(), ("\x07",), ("\x02\x03", "\x04\x05", "\x08\x09")])
        params = SamplingParams(max_tokens=rng.randint(1, 16), temperature=temperature, stop=stop, **filters)
        prefix = prompts[problem] + tuple(rng.randrange(2) for _ in range(rng.randint(0, 3)))
        group, num_top = f"problem {problem}", rng.choice([0, 1, 20])
        requests.append(GenerationRequest(prefix=prefix, params=params, seed=seed, group=group, num_top=num_top))
    return requests + requests


def generate(requests: list[GenerationRequest], parts: Speculation | None = None, **knobs: Any) -> list[Generation]:
    given = {"kv_bytes": 3000, "eos_ids": [31], **knobs}
    engine = LocalEngine(HashBackend(VOCABULARY, scale=3.0), decode=TOKENIZER.decode, speculation=parts, **given)
    try:
        return asyncio.run(engine.generate(requests))
    finally:
        engine.assert_invariants()
        engine.close()


@cache
def plain(temperature: float) -> list[Generation]:
    return generate(requests_at(temperature))


def assert_same(got: list[Generation], expected: list[Generation]) -> None:
    assert [(g.tokens, g.finish) for g in got] == [(g.tokens, g.finish) for g in expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        for measured, plainly in ((one.top_logprobs, other.top_logprobs), (one.entropies, other.entropies)):
            assert (measured is None) == (plainly is None)
            if measured is not None and plainly is not None:
                np.testing.assert_allclose(measured, plainly, atol=1e-5)
        assert one.usage.tokens == other.usage.tokens == len(one.tokens)
        assert one.usage.accepted <= one.usage.drafted


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("templates") / "small.json"
    file.write_text(json.dumps(SHAPE), encoding="utf-8")
    return str(file)


yaml = cache(load_option)


def parts_of(source: str, controller: str, template: str, acceptance: str = "coupled") -> Speculation:
    """What the settings of these names make; anew, for an engine of its own."""
    chosen = {"speculation": source, "controller": controller, "acceptance": acceptance}
    settings = {group: dict(yaml(group, name)) for group, name in chosen.items()}
    if controller == "template":
        settings["controller"] |= {"file": template}
    return speculation.validate_speculation(settings).make_speculation(None, "the writer")


def test_the_requests_end_in_all_ways() -> None:
    ends = {g.finish for temperature in SQUEEZES for g in plain(temperature)}
    assert ends == {"eos", "stop", "length"}


@pytest.mark.parametrize("temperature", SQUEEZES)
@pytest.mark.parametrize("controller", list_options("controller"))
@pytest.mark.parametrize("source", SOURCES)
def test_output_equals_plain_decoding(source: str, controller: str, temperature: float, template: str) -> None:
    for knobs in SQUEEZES[temperature]:
        parts = parts_of(source, controller, template)
        assert isinstance(parts.acceptance, Coupled)
        assert_same(generate(requests_at(temperature), parts, **knobs), plain(temperature))


@pytest.mark.parametrize("source", SOURCES)
def test_preempted_branches_generate_the_same_tokens(source: str, template: str) -> None:
    """Three fit when they start and not when they have grown."""
    params = SamplingParams(max_tokens=60, temperature=0.3)
    requests = [GenerationRequest(prefix=(1, 2, 3), params=params, seed=seed, group="a") for seed in (1, 2, 1)]
    backend, parts = HashBackend(VOCABULARY), parts_of(source, "fixed", template)
    with open_engine(backend, num_slots=140, speculation=parts) as narrow, open_engine(backend) as wide:
        done, expected = (asyncio.run(engine.generate(requests)) for engine in (narrow, wide))
        assert narrow.stats.preemptions > 0
        assert wide.stats.preemptions == 0
    assert_same(done, expected)


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "off"])
def test_repeated_texts_are_drafted_correctly(source: str, template: str) -> None:
    """So equality is not that of engines which never draft."""
    parts = parts_of(source, "fixed", template)
    done = generate(requests_at(0.6), parts, max_running_requests=3)
    again = done[len(done) // 2 :]
    assert sum(g.usage.drafted for g in done) > 0
    # one knows its own text alone, one single tokens, and one both
    if source not in ("prompt_lookup", "token_recycling", "goose"):
        assert sum(g.usage.accepted for g in again) > 0.3 * sum(g.usage.tokens for g in again)


@pytest.mark.parametrize("scale", [3.0, 1.0], ids=["itself", "another"])
@pytest.mark.parametrize("temperature", SQUEEZES)
def test_a_draft_model_changes_nothing_either(temperature: float, scale: float) -> None:
    """The target itself, which is nearly always right, and another model, which hardly ever is."""
    for knobs in SQUEEZES[temperature]:
        source = DraftModel(HashBackend(VOCABULARY, scale=scale), k=8, kv_bytes=3000)
        done = generate(requests_at(temperature), Speculation(TreeDrafter(source), FixedController(5)), **knobs)
        assert_same(done, plain(temperature))
        if scale == 3.0 and not knobs:
            assert sum(g.usage.accepted for g in done) > 0.5 * sum(g.usage.tokens for g in done)


def test_a_mixture_of_temperatures_in_one_batch(template: str) -> None:
    """And every branch has another seed than its like at another temperature."""
    mixed = [
        replace(request, seed=request.seed + 100 * at)
        for at, temperature in enumerate(SQUEEZES)
        for request in requests_at(temperature)
    ]
    expected = generate(mixed)
    for source in SOURCES:
        assert_same(generate(mixed, parts_of(source, "fixed", template), kv_bytes=400), expected)


# these accept what the target would not write, also at temperature 0
@pytest.mark.parametrize("acceptance", [n for n in list_options("acceptance") if n not in ("judge", "reflective")])
def test_at_temperature_zero_every_rule_gives_the_same(acceptance: str, template: str) -> None:
    for controller in ("template", "chain"):
        for source in ("stand", "stand_published"):
            parts = parts_of(source, controller, template, acceptance)
            assert_same(generate(requests_at(0.0), parts, kv_bytes=200), plain(0.0))


LATENESS = (1, 4, 9, 16, 30)


def generate_late(lateness: int, parts: Speculation) -> list[Tokens]:
    """Returns the texts of two branches, the second of which arrives once the first has so many tokens."""
    reached, arrived, length = threading.Event(), threading.Event(), 0

    def hold_round(tokens: Sequence[int]) -> None:
        nonlocal length
        length += len(tokens)
        if length >= lateness:
            reached.set()
            assert arrived.wait(60)

    params = SamplingParams(max_tokens=40, temperature=0.7)
    second = GenerationRequest(prefix=(1, 2, 3), params=params, seed=2, group="a")
    first = replace(second, seed=1, on_tokens=hold_round)

    async def arrive_late(engine: LocalEngine) -> list[Generation]:
        await asyncio.to_thread(reached.wait, 60)
        task = asyncio.create_task(engine.generate([second]))
        await asyncio.sleep(0)  # submits it: the round after this one has both
        arrived.set()
        return await task

    async def generate_both(engine: LocalEngine) -> list[Tokens]:
        done = await asyncio.gather(engine.generate([first]), arrive_late(engine))
        return [generation.tokens for (generation,) in done]

    with open_engine(HashBackend(VOCABULARY, scale=3.0), speculation=parts) as engine:
        return asyncio.run(generate_both(engine))


# the others need a tokenizer, or the hidden states of one model
@pytest.mark.parametrize("acceptance", [n for n in list_options("acceptance") if n not in ("judge", "reflective")])
def test_texts_depend_on_when_another_branch_arrives_with_some_rules_alone(acceptance: str, template: str) -> None:
    """What is drafted does, as branches share what the drafter learns. So runs repeat their texts with two rules."""
    texts = [generate_late(lateness, parts_of("stand", "chain", template, acceptance)) for lateness in LATENESS]
    again = [generate_late(lateness, parts_of("stand", "chain", template, acceptance)) for lateness in LATENESS]
    assert texts == again  # it is nothing else
    assert all(one == texts[0] for one in texts) == (acceptance in DRAFT_INDEPENDENT)
