"""Servers that the tests share, all started at once: a start takes half a minute, mostly of waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from reason.solver import Solver
from tests.support import sglang_solvers as solving
from tests.support.sglang_servers import DRAFT, VENV, RealServer

CORE_EACH = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}  # SGLang wants a NUMA node for each rank, or to be told
BUILT = (VENV / "bin" / "python").exists()
SKIP = f"SGLang is not installed in {VENV.name}; tests/sglang/setup.sh does it (make sglang)"


@dataclass
class Fleet:
    """plain     decodes token by token; a short queue
    guessing  two with our speculation, the second with less KV than it is asked to hold
    rejecting our speculation with the other rule
    ranks     our speculation on two ranks of the small bundled model, whose two heads can be told apart
    """

    plain: RealServer
    guessing: tuple[RealServer, RealServer]
    rejecting: RealServer
    ranks: RealServer


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if not BUILT:
        pytest.skip(SKIP)
    logs = tmp_path_factory.mktemp("servers")
    nodes, ours = ("--speculative-num-draft-tokens", "12"), ("--speculative-algorithm", "REASON")
    with ExitStack() as stack:

        def start(name: str, *flags: str, **more: Any) -> RealServer:
            server = RealServer(logs / f"{name}.log", *flags, **more)
            stack.callback(server.kill)
            return server

        plain = start("plain", "--max-running-requests", "4", "--max-queued-requests", "4")
        guessing = start("first", *ours, *nodes), start("second", *ours, *nodes, tokens=1024)
        rejecting = start("rejecting", "--speculative-algorithm", "REASON_RECURSIVE", *nodes)
        ranks = start("ranks", *ours, *nodes, "--tp-size", "2", model=DRAFT, variables=CORE_EACH)
        for server in (plain, *guessing, rejecting, ranks):
            server.wait()
        yield Fleet(plain, guessing, rejecting, ranks)


@pytest.fixture
def plain(fleet: Fleet) -> RealServer:
    return fleet.plain


@pytest.fixture
def guessing(fleet: Fleet) -> tuple[RealServer, RealServer]:
    return fleet.guessing


@pytest.fixture(scope="package")
def here() -> Iterator[Solver]:
    """The model in this process, to compare with."""
    with solving.here("scorer=none", "search=self_consistency") as made:
        yield made
