"""Hostile behaviours of time and connections: silence, drips, streams without end, closed and reset connections."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator

from tests.support.hostile_exchange import (
    ANSWERED,
    ANY,
    DRIP_S,
    FAILED,
    SLOW_DRIP_S,
    Act,
    Behaviour,
    Exchange,
    build_message,
)
from tests.support.hostile_replies import encode_event, encode_events

_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
_HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_CHUNK = b"a" * (1 << 16)


def _reply_bytes(exchange: Exchange) -> bytes:
    """Returns the bytes of a healthy reply."""
    return build_message(json.dumps(exchange.build_reply()).encode())


def _letters(data: bytes) -> Iterator[bytes]:
    return (data[i : i + 1] for i in range(len(data)))


def _token_event(exchange: Exchange) -> bytes:
    if exchange.dialect == "sglang":
        return encode_event(json.dumps({"output_ids": [97], "meta_info": {"finish_reason": None}}))
    return encode_event(json.dumps({"choices": [{"text": "a", "finish_reason": None}]}))


async def accept_in_silence(exchange: Exchange) -> None:
    await exchange.linger()


async def never_read(exchange: Exchange) -> None:
    """For three seconds: a server that does not read does not notice that the client is gone."""
    transport = exchange.writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]  # a transport of a socket can read, too
    try:
        await exchange.wait(3)
    finally:
        transport.resume_reading()  # type: ignore[attr-defined]
    await exchange.linger()


async def close_at_once(exchange: Exchange) -> None:
    del exchange


async def reset_at_once(exchange: Exchange) -> None:
    exchange.reset()


async def reset_after_request(exchange: Exchange) -> None:
    await exchange.read_request()
    exchange.reset()


async def reset_mid_body(exchange: Exchange) -> None:
    await exchange.read_request()
    await exchange.send(_reply_bytes(exchange)[:-20])
    exchange.reset()


async def close_for_writing(exchange: Exchange) -> None:
    """Ends its half of the connection instead of replying, and reads on."""
    await exchange.read_request()
    exchange.writer.write_eof()
    await exchange.linger()


async def answer_unasked(exchange: Exchange) -> None:
    """Times out a request that has not come yet."""
    await exchange.send(build_message(b"{}", "408 Request Timeout"))
    await exchange.linger()


async def answer_twice(exchange: Exchange) -> None:
    """Sends a second reply on the open connection, which the next request must not take for its own."""
    while True:
        await exchange.read_request()
        reply = exchange.build_reply()
        body = encode_events(reply) if exchange.is_streamed else json.dumps(reply).encode()
        forged = body.replace(b"One.", b"Bad.").replace(b"[79, ", b"[66, ")
        replies = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data) for data in (body, forged)]
        await exchange.send(b"".join(replies))


async def answer_slowly(exchange: Exchange) -> None:
    """Needs a moment, as a busy server does, and answers."""
    await exchange.read_request()
    await exchange.wait(0.2)
    await exchange.send_reply(exchange.build_reply())


async def hide_all_but_text(exchange: Exchange) -> None:
    """Answers requests for text only; what describes the server never comes."""
    await exchange.read_request()
    if not exchange.is_generation:
        await exchange.linger()
    await exchange.send_reply(exchange.build_reply())


async def send_early_hints(exchange: Exchange) -> None:
    await exchange.read_request()
    await exchange.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 20)
    await exchange.send_reply(exchange.build_reply())


def holds_after(start: bytes | None) -> Act:
    """Returns the act that sends `start`, half a reply where it is None, and then nothing."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        await exchange.send(_reply_bytes(exchange)[:-20] if start is None else start)
        await exchange.linger()

    return act


def drips(pause_s: float, *, head: bool = False) -> Act:
    """Returns the act that sends a healthy reply byte by byte, with its headers or after them."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        start, blank, body = _reply_bytes(exchange).partition(b"\r\n\r\n")
        if not head:
            await exchange.send(start + blank)
        await exchange.drip(_letters(start + blank + body if head else body), pause_s)

    return act


def repeats(piece: bytes | None, *, start: bytes = _STREAM_HEAD, pause_s: float = 0) -> Act:
    """Returns the act that sends `piece` for ever, an event with a token where it is None."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        await exchange.send(start)
        pieces: Iterable[bytes] = itertools.repeat(_token_event(exchange) if piece is None else piece)
        if pause_s:
            await exchange.drip(pieces, pause_s)
        for each in pieces:
            await exchange.send(each)

    return act


ROWS = (
    Behaviour("silence_after_accept", accept_in_silence),
    Behaviour("silence_after_request", holds_after(b"")),
    Behaviour("silence_after_headers", holds_after(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")),
    Behaviour("silence_mid_headers", holds_after(b"HTTP/1.1 200 OK\r\nContent-Le")),
    Behaviour("silence_mid_body", holds_after(None)),
    Behaviour("never_reads", never_read),
    Behaviour("closes_at_once", close_at_once),
    Behaviour("closes_its_half", close_for_writing),
    Behaviour("resets_at_once", reset_at_once),
    Behaviour("resets_after_request", reset_after_request),
    Behaviour("resets_mid_body", reset_mid_body),
    Behaviour("body_drips", drips(DRIP_S)),
    Behaviour("body_drips_slowly", drips(SLOW_DRIP_S)),
    Behaviour("headers_drip", drips(DRIP_S, head=True)),
    Behaviour("headers_drip_slowly", drips(SLOW_DRIP_S, head=True)),
    Behaviour("headers_without_end", repeats(b"X-More: 1\r\n", start=b"HTTP/1.1 200 OK\r\n", pause_s=DRIP_S)),
    Behaviour("headers_flood", repeats(b"X-More: %b\r\n" % _CHUNK[:1000], start=b"HTTP/1.1 200 OK\r\n")),
    Behaviour("stream_drips", repeats(None, pause_s=DRIP_S)),
    Behaviour("stream_drips_slowly", repeats(None, pause_s=SLOW_DRIP_S)),
    Behaviour("stream_of_tokens_without_end", repeats(None), alone=ANY, alters_text=True),
    Behaviour("stream_of_comments_drips", repeats(b": ping\n\n", pause_s=DRIP_S)),
    Behaviour("stream_of_comments_without_end", repeats(b": ping\n\n" * 1000)),
    Behaviour("stream_of_blank_lines_without_end", repeats(b"\n" * 10_000)),
    Behaviour("stream_without_newlines", repeats(_CHUNK)),
    Behaviour(
        "stream_of_empty_tokens", repeats(encode_event('{"choices": [{"text": "", "finish_reason": null}]}') * 99)
    ),
    Behaviour("tls_bytes", repeats(_TLS_ALERT, start=_TLS_ALERT, pause_s=DRIP_S)),
    Behaviour("http2_frames", holds_after(_HTTP2_SETTINGS)),
    Behaviour("continues_for_ever", repeats(b"HTTP/1.1 100 Continue\r\n\r\n", start=b"", pause_s=DRIP_S)),
    Behaviour("continues_in_a_flood", repeats(b"HTTP/1.1 100 Continue\r\n\r\n" * 99, start=b"")),
    Behaviour("answers_unasked", answer_unasked, alone=FAILED),
    Behaviour("answers_twice", answer_twice, alone=ANSWERED),
    Behaviour("answers_slowly", answer_slowly, alone=ANSWERED),
    Behaviour("answers_only_for_text", hide_all_but_text, alone=ANSWERED),
    Behaviour("early_hints", send_early_hints, alone=ANSWERED),
)
