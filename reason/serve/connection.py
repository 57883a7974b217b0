"""One client connection: uvicorn's protocol with the limits that uvicorn has not."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import uuid
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from reason.serve.errors import ApiError
from reason.serve.gate import HEADER_BYTES
from reason.serve.request_id import HEADER

KERNEL_BUFFER_BYTES = 64 << 10
"""What the operating system is asked to hold for a client; Linux doubles it. By itself it holds megabytes, and
does not say for as long whether the client reads."""

PROGRESS_BYTES = 64 << 10
"""A client that reads 256 KiB of its answer makes this much room at least: both systems report room in large steps."""

AHEAD_BYTES = 64 << 10
"""Maximum size of what a client sends while its request is being answered."""


@dataclass(frozen=True)
class ConnectionLimits:
    """`conf/serve.yaml` describes each limit."""

    max_connections: int
    receive_timeout_s: float
    send_timeout_s: float


class ConnectionConfig(uvicorn.Config):
    """Configures uvicorn with `limits`, for plain HTTP/1.1 without a proxy's headers and without logs of its own."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, *, grace_s: int) -> None:
        super().__init__(
            app,
            http=LimitedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
            # not before `receive_timeout_s`: uvicorn's 5 seconds are httpx's too, and a client that keeps a connection
            # as long as the server does sends its next request just as that one closes it
            timeout_keep_alive=math.ceil(limits.receive_timeout_s) + 1,
            timeout_graceful_shutdown=grace_s,
        )
        self.limits = limits


class LimitedConnection(H11Protocol):
    """Ends connections that are too many, that send a request too slowly, or that do not read their answer.

    What cannot reach the routes is answered here, in the format of all other errors.
    A closed write side counts as a closed connection: the two look alike until an answer fails to arrive.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        # asyncio sets it only on sockets that were opened with the number of the protocol, which `create_server` leaves
        # out. Without it a body waits until the client has confirmed the head: 40 ms
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # `pause_writing` is then called whenever the client has not taken everything
        transport.set_write_buffer_limits(0)
        if len(self.connections) <= self._limits.max_connections:
            self._start_receive_timer()
        else:
            message = f"{self._limits.max_connections} connections are open (serve.max_connections); come back later"
            self._refuse(ApiError(503, message, code="too_many_connections", headers={"Retry-After": "1"}))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receive_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._request_begun:
            self._start_receive_timer()
        super().data_received(data)
        self._update_receiving()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_receiving()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_send_timer()

    def resume_writing(self) -> None:
        self._stop_send_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP; uvicorn calls it while it handles h11's exception, which says what is wrong."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        reason, *_ = str(error).partition(": bytearray(")  # what follows is what the client sent
        self._refuse(ApiError(status, f"the request is not valid HTTP: {reason}", code="invalid_http"))

    @property
    def _request_begun(self) -> bool:
        return self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])

    def _update_receiving(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            if self._receive_timer is None:
                self._start_receive_timer()
            return
        self._stop_receive_timer()
        if len(self.conn.trailing_data[0]) > AHEAD_BYTES:
            self.transport.abort()
        else:
            # uvicorn stops reading at the next request, and would not see that the client is gone
            self.flow.resume_reading()

    def _start_receive_timer(self) -> None:
        self._stop_receive_timer()
        self._receive_timer = self.loop.call_later(self._limits.receive_timeout_s, self._end_receiving)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _end_receiving(self) -> None:
        if self._request_begun:
            limit = f"{self._limits.receive_timeout_s:g} seconds (serve.receive_timeout_s)"
            self._refuse(ApiError(408, f"the request did not arrive within {limit}", code="slow_request"))
        else:
            self.transport.close()

    def _start_send_timer(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self._limits.send_timeout_s, self._check_progress)

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _check_progress(self) -> None:
        if self._unsent_bytes - self.transport.get_write_buffer_size() >= PROGRESS_BYTES:
            self._start_send_timer()
        else:
            self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answers an error and closes the connection; only closes it where that answer cannot be sent."""
        response = error.response
        headers = [*response.raw_headers, (HEADER.encode(), uuid.uuid4().hex.encode()), (b"connection", b"close")]
        head = h11.Response(status_code=error.status, headers=headers, reason=STATUS_PHRASES[error.status])
        try:
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # another answer has begun, or the request is HEAD, whose answer has no body
            self.transport.abort()
        if self.cycle is not None:  # its task must not answer, too
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
