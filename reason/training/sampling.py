"""Sample a model's solutions of many problems on the local engine, for labels and for tables of accuracy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoding.core import GenerationRequest, SamplingParams
from reason.models.hf import Device
from reason.models.local import local_engine
from reason.tasks.synthetic.exercise import Exercise
from reason.training.tokenizer import render
from search.seeds import derive_seed

Sampled = tuple[str, bool]  # a solution's text, and whether it ended by itself


def sample(
    checkpoint: Path,
    tokenizer: Any,
    exercises: Sequence[Exercise],
    n: int,
    *,
    temperature: float,
    device: Device = "auto",
    max_tokens: int = 400,
    seed: int = 0,
) -> list[list[Sampled]]:
    """`n` solutions of each problem by the model in `checkpoint`; the same for the same seed."""
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    requests = [
        GenerationRequest(
            prefix=tuple(tokenizer.encode(render(exercise.question))),
            params=params,
            seed=derive_seed(seed, exercise.question, i),
            group=exercise.question,
        )
        for exercise in exercises
        for i in range(n)
    ]
    engine = local_engine(str(checkpoint), tokenizer=tokenizer, device=device)
    try:
        generations = iter(asyncio.run(engine.generate(requests)))
    finally:
        engine.close()
    texts = (
        (tokenizer.decode(list(g.tokens[:-1] if g.finish == "eos" else g.tokens)), g.finish == "eos")
        for g in generations
    )
    return [[next(texts) for _ in range(n)] for _ in exercises]
