"""Listen, load the models while already answering that they are being loaded, serve, stop in good order."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import uvicorn

from reason.config.errors import ConfigError
from reason.serve.app import make_app
from reason.serve.service import Service


class Server:
    """A service behind a socket. The socket is taken at once, so that a port that is in use costs no loading.

    url   where it answers

    Raises: ConfigError if host and port cannot be had.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self._service = service
        self._socket = _listen(settings.host, settings.port)
        self.url = _url(self._socket)
        self._error: Exception | None = None
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                make_app(service),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=max(1, round(settings.grace)),
            )
        )

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until told to stop, by a signal or by `stop`; `ready` is called when the models are loaded.

        Raises: ConfigError or whatever loading raises.
        """
        asyncio.run(self._run(ready))
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End `run`, from any thread: requests under way are given `serve.grace` seconds."""
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
        except Exception as error:  # it is for whoever called `run`
            self._error = error
            self.stop()
        else:
            if not self._uvicorn.should_exit:
                ready()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on serve.host={host} serve.port={port}: {error.strerror or error}") from error
    listening.setblocking(False)
    return listening
