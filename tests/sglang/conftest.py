"""Servers that the tests share, all started at once: a start takes half a minute, mostly of waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from reason.solver import Solver
from tests.sglang import solving
from tests.sglang.serving import VENV, RealServer

collect_ignore = ["shim"]
BUILT = (VENV / "bin" / "python").exists()
SKIP = f"SGLang is not installed in {VENV.name}; tests/sglang/setup.sh does it (make sglang)"


@dataclass
class Fleet:
    """plain     decodes token by token; a short queue
    guessing  two with our speculation, the second with less KV than it is asked to hold
    rejecting our speculation with the other rule
    """

    plain: RealServer
    guessing: tuple[RealServer, RealServer]
    rejecting: RealServer


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if not BUILT:
        pytest.skip(SKIP)
    logs = tmp_path_factory.mktemp("servers")
    nodes, ours = ("--speculative-num-draft-tokens", "12"), ("--speculative-algorithm", "REASON")
    with ExitStack() as stack:

        def start(name: str, *flags: str, tokens: int = 8192) -> RealServer:
            server = RealServer(logs / f"{name}.log", *flags, tokens=tokens)
            stack.callback(server.kill)
            return server

        plain = start("plain", "--max-running-requests", "4", "--max-queued-requests", "4")
        guessing = start("first", *ours, *nodes), start("second", *ours, *nodes, tokens=1024)
        rejecting = start("rejecting", "--speculative-algorithm", "REASON_RECURSIVE", *nodes)
        for server in (plain, *guessing, rejecting):
            server.wait()
        yield Fleet(plain, guessing, rejecting)


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
