"""Programs that fork while they have a solver: `python -m tests.support.fork_programs NAME` prints the outcomes."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

import reason
from decoding.core import GenerationRequest, SamplingParams
from decoding.stopping import StopRule
from reason.engines.sglang_client.dispatcher import Dispatcher
from reason.engines.sglang_client.engine import SGLangEngine
from reason.engines.sglang_client.head_queries import RewardHeadQuery
from reason.engines.sglang_client.reader import SGLangReader
from reason.engines.sglang_client.settings import SGLangSettings
from reason.solver import Solver
from tests.support.forks import LIMIT_S, print_outcomes, run_in_fork
from tests.support.scripted_openai_server import ScriptedOpenAIServer
from tests.support.scripted_sglang_server import ByteVocabulary, ScriptedSGLangServer

QUESTION = "What is the remainder when 7^2 is divided by 5?"
OTHERS = [f"What is the remainder when {n}^2 is divided by 5?" for n in range(20)]
NUM_FORKS = 3


def open_solver(*settings: str) -> Solver:
    return reason.load("search.n=2", "engine.kv_mib=64", *settings)


def solve_own() -> str:
    """Returns the solution of a solver that this process opens, after an operation in several threads."""
    torch.exp(torch.ones(2_000_000)).sum()
    with open_solver() as solver:
        return solver.solve(QUESTION).text


class QuestionStream(IterableDataset[str]):
    """Solves in the process of a data loader."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def __iter__(self) -> Iterator[str]:
        yield self.solver.solve(QUESTION).text


def load_data(solver: Solver) -> str:
    """Returns the first error of a data loader's worker."""
    try:
        return str(next(iter(DataLoader(QuestionStream(solver), num_workers=1, timeout=LIMIT_S))))
    except RuntimeError as error:
        return str(error)


def join_process(solver: Solver) -> int | None:
    """Returns the exit status of a `multiprocessing` process that closes the solver; None where it hangs."""
    process = multiprocessing.get_context("fork").Process(target=solver.close)
    process.start()
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
    return process.exitcode


async def solve_each(solver: Solver) -> list[object]:
    return [outcome async for outcome in solver.asolve_many(OTHERS)]


def use_solver(solver: Solver) -> str:
    """Returns the errors of all that a solver can do, one a line."""
    request = GenerationRequest(prefix=(1, 2), params=SamplingParams(max_tokens=2), seed=0)
    uses: dict[str, Callable[[], object]] = {
        "solve": lambda: solver.solve(QUESTION),
        "asolve": lambda: asyncio.run(solver.asolve(QUESTION)),
        "solve_many": lambda: list(solver.solve_many(OTHERS)),
        "asolve_many": lambda: asyncio.run(solve_each(solver)),
        "with_options": lambda: solver.with_options(seed=1).solve(QUESTION),
        "run_coroutine": lambda: solver.run_coroutine(asyncio.sleep(0)),
        "generate": lambda: asyncio.run(solver.engine.generate([request])),
        "assert_invariants": solver.assert_invariants,
    }
    errors = []
    for name, use in uses.items():
        try:
            use()
        except RuntimeError as error:
            errors.append(f"{name}: {error}")
    return "\n".join(errors)


def close_solver(solver: Solver) -> str:
    """Closes a solver and its parts, twice, and frees what no variable refers to; returns that it came to an end."""
    for part in (solver, solver, solver.scorer, solver.engine, solver.engine):
        part.close()
    gc.collect()
    return "closed"


def fork_beside_local() -> dict[str, object]:
    """An idle local solver, its uses in forks, and forks with a solver of their own."""
    torch.set_num_threads(4)
    torch.exp(torch.ones(2_000_000)).sum()  # this thread now has helpers, which a fork has not
    with open_solver() as solver:
        unused = run_in_fork(lambda: solver.solve(QUESTION).text)
        before = solver.solve(QUESTION).text
        return {
            "unused": unused,
            "before": before,
            "used": run_in_fork(lambda: use_solver(solver)),
            "closed": run_in_fork(lambda: close_solver(solver)),
            "own": run_in_fork(solve_own),
            "loader": load_data(solver),
            "process": join_process(solver),
            "after": solver.solve(QUESTION).text,
        }


def fork_while_solving() -> dict[str, object]:
    """Forks during searches of the parent; each closes the parent's solver and opens its own."""
    with open_solver() as solver:
        alone = [solver.solve(question).text for question in OTHERS]
        running = [solver.submit(question) for question in OTHERS]
        forks = []
        for _ in range(NUM_FORKS):
            forks.append(run_in_fork(lambda: f"{close_solver(solver)} {solve_own()}"))
            running += [solver.submit(question) for question in OTHERS]
        texts = [future.result(LIMIT_S).text for future in running]
        solver.assert_invariants()
        text = solver.solve(QUESTION).text
    return {"forks": forks, "own": text, "same": texts == alone * (1 + NUM_FORKS)}


def fork_beside_router() -> dict[str, object]:
    """A solver over two local engines."""
    with open_solver("router=arbitrage") as solver:
        before = solver.solve(QUESTION).text
        used, closed = run_in_fork(lambda: use_solver(solver)), run_in_fork(lambda: close_solver(solver))
        return {"used": used, "closed": closed, "same": solver.solve(QUESTION).text == before}


def fork_beside_servers() -> dict[str, object]:
    """A solver over an OpenAI-compatible server, idle and with a request under way; then SGLang's engine and reader."""
    outcomes: dict[str, object] = {}
    server = ScriptedOpenAIServer()
    engine_settings = ("engine=openai", f"engine.urls=[{server.url}]", "engine.model=toy", "model=bundled")
    search = ("search=self_consistency", "scorer=none", "search.n=1", "search.sampling.max_tokens=30")
    with reason.load(*engine_settings, *search) as solver:
        before = solver.solve(QUESTION).text
        outcomes["used"] = run_in_fork(lambda: use_solver(solver))
        server.script = ["hang"]
        running = solver.submit(QUESTION)
        while not server.under_way:
            time.sleep(0.01)
        outcomes["closed"] = run_in_fork(lambda: close_solver(solver))
        server.release()
        outcomes["same"] = [running.result(LIMIT_S).text, solver.solve(QUESTION).text] == [before, before]
    server.close()
    sglang = ScriptedSGLangServer()
    dispatchers = [Dispatcher(SGLangSettings(urls=[sglang.url])) for _ in range(2)]
    rule = StopRule(lambda ids: ByteVocabulary().decode(ids), frozenset({256}))
    engine = SGLangEngine(dispatchers[0], stop_rule=rule, vocab_size=257, tokenizer=ByteVocabulary())
    query = RewardHeadQuery(num_outputs=2)
    reader = SGLangReader(dispatchers[1], query, vocab_size=257, tokenizer=ByteVocabulary())
    request = GenerationRequest(prefix=(1, 2), params=SamplingParams(max_tokens=2), seed=0)
    outcomes["sglang_engine"] = run_in_fork(lambda: asyncio.run(engine.generate([request])))
    outcomes["sglang_reader"] = run_in_fork(lambda: asyncio.run(reader.encode([(1, 2)], [0])))
    outcomes["sglang_close"] = [run_in_fork(engine.close), run_in_fork(reader.close)]
    assert asyncio.run(engine.generate([request]))
    assert asyncio.run(reader.encode([(1, 2)], [0]))
    for one in (engine, reader, sglang):
        one.close()
    return outcomes


PROGRAMS = {
    "local": fork_beside_local,
    "solving": fork_while_solving,
    "router": fork_beside_router,
    "servers": fork_beside_servers,
}

if __name__ == "__main__":
    print_outcomes(PROGRAMS[sys.argv[1]]())
