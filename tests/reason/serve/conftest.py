"""One toy server, and one with the bundled models, shared by all tests that do not change them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from reason.serve.presets import load_presets
from reason.serve.service import SearchService
from tests.support.served_upstream import ServedUpstream, served_upstream
from tests.support.toy_server import ToySearchService, running_server, serve_settings, toy_server


@pytest.fixture(scope="session")
def toy() -> Iterator[httpx.Client]:
    with toy_server() as (client, _):
        yield client


@pytest.fixture
def own_toy() -> Iterator[tuple[httpx.Client, ToySearchService]]:
    with toy_server() as server:
        yield server


@pytest.fixture(scope="session")
def bundled() -> Iterator[tuple[str, SearchService]]:
    """Address and service of a server with the bundled models, without speculation: that would be compiled first."""
    names = ["best-of-4", "beam-16", "confidence-16"]
    service = SearchService(
        serve_settings(presets=names, concurrency=4, queue=64), load_presets(["speculation=off"], names)
    )
    with running_server(service) as url:
        yield url, service


@pytest.fixture(scope="session")
def upstream() -> Iterator[ServedUpstream]:
    """A server in front of a scripted one; each test scripts it anew."""
    with served_upstream() as served:
        yield served
