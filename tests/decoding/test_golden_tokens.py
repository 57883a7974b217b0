"""Tokens of fixed requests on a toy model, kept in a file: same seeds, same tokens, in every release.

REGENERATE_GOLDEN=1 writes the file anew; its difference is a change of behaviour.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from itertools import product

import pytest

from decoding.core import Generation, GenerationRequest, SamplingParams
from tests.support.engines import EngineKnobs, SamplingKnobs, open_engine
from tests.support.fakes import HashBackend
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden" / "decoding_tokens.json"

PREFIXES = ((3, 1, 4, 1, 5, 9, 2, 6), (27, 18, 28), tuple(range(20)))
SEEDS = (0, 1, 2**63 + 11)
SAMPLING: dict[str, SamplingKnobs] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cool": {"temperature": 0.4},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 5},
    "top_p": {"temperature": 0.8, "top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "all filters": {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    "stop string": {"stop": ("\n", "\x07\x1f")},  # the toy's ids are bytes below 32
    "stop ids": {"stop_token_ids": (5, 6)},
}
KNOBS: dict[str, EngineKnobs] = {
    "defaults": {},
    "small rounds": {"max_batched_tokens": 7},
    "few at a time": {"max_running_requests": 2},
}


def named_requests() -> dict[str, GenerationRequest]:
    return {
        f"{name}, prefix {i}, seed {seed}": GenerationRequest(
            prefix=prefix, seed=seed, params=replace(SamplingParams(**SAMPLING[name]), max_tokens=24)
        )
        for name, (i, prefix), seed in product(SAMPLING, enumerate(PREFIXES), SEEDS)
    }


def to_row(generation: Generation) -> str:
    return f"{generation.finish}: {' '.join(map(str, generation.tokens))}"


@pytest.mark.parametrize("name", KNOBS)
def test_tokens_of_fixed_requests_stay_the_same(name: str) -> None:
    requests = named_requests()
    with open_engine(HashBackend(), **KNOBS[name]) as engine:
        generations = asyncio.run(engine.generate(list(requests.values())))
    rows = dict(zip(requests, map(to_row, generations), strict=True))
    if os.environ.get("REGENERATE_GOLDEN") and name == "defaults":
        GOLDEN.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    assert rows == json.loads(GOLDEN.read_text(encoding="utf-8"))
