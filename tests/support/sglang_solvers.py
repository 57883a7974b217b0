"""One solver over the local engine, and over servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import reason
from decoding.core import Generation, GenerationRequest, SamplingParams
from reason.engines.sglang_client.engine import SGLangEngine
from reason.solver import Solver
from tests.support.sglang_servers import RealServer

QUESTIONS = (
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "What is the remainder when 7^2 is divided by 5?",
)


def load_local(*settings: str) -> Solver:
    """Returns a solver with plain decoding in this process."""
    return reason.load("engine=local", "engine.device=cpu", "engine.kv_mib=256", "speculation=off", *settings)


def load_remote(servers: Sequence[RealServer], *settings: str) -> Solver:
    """Returns a solver over these servers."""
    urls = ",".join(server.url for server in servers)
    return reason.load("engine=sglang", f"engine.urls=[{urls}]", *settings)


def sglang_engine(solver: Solver) -> SGLangEngine:
    """Returns the engine of a solver over servers."""
    assert isinstance(solver.engine, SGLangEngine)
    return solver.engine


def generate_all(solver: Solver, params: SamplingParams, *, each: int = 1) -> list[Generation]:
    """Generates `each` continuations of each question's prompt, each with another seed."""
    requests = [
        GenerationRequest(prefix=solver.prompt.encode(question), params=params, seed=2**62 + 7919 * i, group=question)
        for question in QUESTIONS
        for i in range(each)
    ]
    engine = solver.engine
    assert hasattr(engine, "generate")
    generations: list[Generation] = asyncio.run(engine.generate(requests))
    return generations
