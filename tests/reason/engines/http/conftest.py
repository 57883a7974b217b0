"""Servers that send bytes as they are told, for the tests of one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.raw_http import Pieces, RawServer

Serve = Callable[[Pieces], RawServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[RawServer] = []

    def start(pieces: Pieces) -> RawServer:
        servers.append(RawServer(pieces))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
