"""What ends a stream: a late first token, silence between tokens, and bytes between tokens, never its length."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reason.engines.http.client import HttpSession
from reason.engines.http.errors import ReplyTimeout, ResponseLost
from reason.engines.http.reply import ReplyLimits
from tests.support.raw_http import RawServer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
TOKEN, NOTHING, END = b"data: 1\n\n", b"data: 0\n\n", b"data: [DONE]\n\n"
LIMITS = ReplyLimits(total_s=0.6, idle_s=0.4, max_bytes=1000)
Serve = Callable[[list[bytes | float]], RawServer]


def count_tokens(server: RawServer, *, total_s: float) -> int:
    """Reads a stream of numbers and returns their sum: the tokens of each event."""
    received: list[int] = []

    def add_event(event: object) -> bool:
        assert isinstance(event, int)
        received.append(event)
        return False

    session = HttpSession(LIMITS)
    try:
        read = session.http.read_events(
            server.url, "/x", {}, add_event, count_tokens=lambda: sum(received), total_s=total_s
        )
        session.probe_all([read])
    finally:
        session.close()
    return sum(received)


def test_stream_may_take_longer_and_be_larger_than_a_reply_while_tokens_come(serve: Serve) -> None:
    padded = b": " + b"x" * 200 + b"\n" + TOKEN
    steady: list[bytes | float] = [HEAD, *[piece for _ in range(10) for piece in (0.1, padded)], END]
    assert count_tokens(serve(steady), total_s=60) == 10


def test_first_token_has_the_time_of_a_reply(serve: Serve) -> None:
    assert count_tokens(serve([HEAD, 0.45, TOKEN, END]), total_s=60) == 1
    late: list[bytes | float] = [HEAD, NOTHING, 0.3, NOTHING, 0.3, NOTHING, 0.3, TOKEN, END]
    with pytest.raises(ReplyTimeout, match=r"no token within 0\.6 s \(request_timeout_s\)"):
        count_tokens(serve(late), total_s=60)


def test_events_without_a_token_do_not_end_a_silence(serve: Serve) -> None:
    empty: list[bytes | float] = [piece for _ in range(20) for piece in (0.1, NOTHING)]
    with pytest.raises(ReplyTimeout, match="sent nothing"):
        count_tokens(serve([HEAD, TOKEN, *empty]), total_s=60)
    with pytest.raises(ResponseLost, match="max_reply_mb"):
        count_tokens(serve([HEAD, TOKEN, NOTHING * 200, TOKEN]), total_s=60)


def test_whole_stream_ends_at_the_time_for_its_tokens(serve: Serve) -> None:
    steady: list[bytes | float] = [HEAD, *[piece for _ in range(60) for piece in (0.1, TOKEN)]]
    with pytest.raises(ReplyTimeout, match="within 1 s"):
        count_tokens(serve(steady), total_s=1.0)
