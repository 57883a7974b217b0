"""Servers that the tests share, all started at once: a start takes half a minute, mostly of waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from decoding.sglang_plugin import COUPLED_ALGORITHM, RECURSIVE_ALGORITHM
from reason.solver import Solver
from tests.support.sglang_servers import DRAFT, IS_INSTALLED, NOT_INSTALLED, RealServer, SharedServers
from tests.support.sglang_solvers import load_local

CORE_EACH = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}  # without it SGLang needs a NUMA node for each rank


@pytest.fixture(scope="session")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    if not IS_INSTALLED:
        pytest.skip(NOT_INSTALLED)
    logs = tmp_path_factory.mktemp("servers")
    nodes = ("--speculative-num-draft-tokens", "12", "--reason-controller", "fixed")
    adaptive = ("--reason-controller", "adaptive")  # whether it drafts depends on the clock, what it writes does not
    coupled = ("--speculative-algorithm", COUPLED_ALGORITHM, *nodes)
    with ExitStack() as stack:

        def start(name: str, *flags: str, **settings: Any) -> RealServer:
            server = RealServer(logs / f"{name}.log", *flags, **settings)
            stack.callback(server.kill)
            return server

        plain = start("plain", "--max-running-requests", "4", "--max-queued-requests", "4")
        speculating = start("first", *coupled), start("second", *coupled, *adaptive, tokens=1024)
        recursive = start("recursive", "--speculative-algorithm", RECURSIVE_ALGORITHM, *nodes)
        two_ranks = start("two_ranks", *coupled, "--tp-size", "2", model=DRAFT, variables=CORE_EACH)
        for server in (plain, *speculating, recursive, two_ranks):
            server.wait()
        yield SharedServers(plain, speculating, recursive, two_ranks)


@pytest.fixture
def plain_server(shared_servers: SharedServers) -> RealServer:
    return shared_servers.plain


@pytest.fixture
def speculating_servers(shared_servers: SharedServers) -> tuple[RealServer, RealServer]:
    return shared_servers.speculating


@pytest.fixture(scope="package")
def local_solver() -> Iterator[Solver]:
    """The model in this process, to compare with."""
    with load_local("scorer=none", "search=self_consistency") as solver:
        yield solver
