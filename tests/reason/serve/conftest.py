"""One toy server, and one with the bundled models, for all tests that change nothing about them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from reason.serve.presets import offer
from reason.serve.service import Service
from tests.support.toy_server import ToyService, serving, settings, toy_server


@pytest.fixture(scope="session")
def toy() -> Iterator[httpx.Client]:
    with toy_server() as (client, _):
        yield client


@pytest.fixture
def own_toy() -> Iterator[tuple[httpx.Client, ToyService]]:
    with toy_server() as server:
        yield server


@pytest.fixture(scope="session")
def bundled() -> Iterator[tuple[str, Service]]:
    """Address and service of a server with the bundled models, without speculation: that would be compiled first."""
    names = ["best-of-4", "beam-16"]
    service = Service(settings(presets=names, concurrency=4, queue=64), offer(["speculation=off"], names))
    with serving(service) as url:
        yield url, service
