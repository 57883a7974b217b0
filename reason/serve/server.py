"""Runs the server: listens, loads the models (requests are answered 503 meanwhile), serves, shuts down."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import uvicorn

from reason.config.errors import ConfigError
from reason.serve.app import make_application
from reason.serve.connection import ConnectionConfig, ConnectionLimits
from reason.serve.service import SearchService


class SearchServer:
    """Serves a `SearchService` on a socket. The socket is bound at once: a port in use is an error before any loading.

    url   address of the server

    Raises: ConfigError if host and port cannot be bound.
    """

    def __init__(self, service: SearchService) -> None:
        settings = service.settings
        self._service = service
        self._socket = _open_socket(settings.host, settings.port)
        self.url = _server_url(self._socket)
        self._error: Exception | None = None
        limits = ConnectionLimits(settings.max_connections, settings.receive_timeout_s, settings.send_timeout_s)
        grace_s = max(1, round(settings.grace))
        self._uvicorn = uvicorn.Server(ConnectionConfig(make_application(service), limits, grace_s=grace_s))

    def run(self, ready: Callable[[], None]) -> None:
        """Serves until a signal or `stop`; calls `ready` when the models are loaded.

        Raises: ConfigError or what loading raises.
        """
        asyncio.run(self._run(ready))
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends `run`, from any thread: running requests may take `serve.grace` seconds more."""
        self._uvicorn.should_exit = True

    async def _run(self, ready: Callable[[], None]) -> None:
        loading = asyncio.create_task(self._load(ready))
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            await loading
            await asyncio.to_thread(self._service.close)

    async def _load(self, ready: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(self._service.load)
        except Exception as error:  # `run` raises it
            self._error = error
            self.stop()
        else:
            if not self._uvicorn.should_exit:
                ready()


def is_loopback(host: str) -> bool:
    """True where only this machine can reach `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server_url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _open_socket(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on serve.host={host} serve.port={port}: {error.strerror or error}") from error
    listening.setblocking(False)
    return listening
