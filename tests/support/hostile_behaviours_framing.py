"""Hostile behaviours of HTTP's frame: lengths, chunks, headers and status lines that contradict themselves."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.support.hostile_exchange import ANSWERED, ANY, Act, Behaviour, Exchange, build_message, sends
from tests.support.hostile_replies import encode_events

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


def frames(build: Callable[[bytes], bytes], *, lingers: bool = False, streams: bool = False) -> Act:
    """Returns the act that sends what `build` makes of the body of a healthy reply; `streams` where one is requested.

    Elsewhere a stream is answered with plain JSON, which is no stream.
    """

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        reply = exchange.build_reply()
        await exchange.send(
            build(encode_events(reply) if streams and exchange.is_streamed else json.dumps(reply).encode())
        )
        if lingers:
            await exchange.linger()

    return act


def claims_length(length: int | str) -> Act:
    return frames(lambda body: build_message(body, length=length))


def adds_headers(fields: bytes) -> Act:
    """Returns the act that answers healthily, with further headers."""
    return frames(lambda body: _HEAD + fields + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


def _chunk(body: bytes, size: bytes | None = None) -> bytes:
    return (b"%x" % len(body) if size is None else size) + b"\r\n" + body + b"\r\n"


ROWS = (
    Behaviour("closes_after_headers", sends(_HEAD + b"Content-Length: 100\r\n\r\n")),
    Behaviour("closes_mid_body", frames(lambda body: build_message(body[:-9], length=len(body)))),
    Behaviour("closes_mid_headers", sends(b"HTTP/1.1 200 OK\r\nContent-Le")),
    Behaviour("length_too_large", claims_length(100_000)),
    Behaviour("length_too_small", claims_length(20)),
    Behaviour("length_zero", claims_length(0)),
    Behaviour("length_negative", claims_length(-5)),
    Behaviour("length_is_text", claims_length("many")),
    Behaviour("length_huge", claims_length(10**15)),
    Behaviour("length_of_5000_digits", claims_length("9" * 5000)),
    Behaviour("two_lengths", adds_headers(b"Content-Length: 7\r\n")),
    Behaviour("length_and_chunks", adds_headers(b"Transfer-Encoding: chunked\r\n"), alone=ANY),
    Behaviour("coding_unknown", adds_headers(b"Transfer-Encoding: identity, magic\r\n"), alone=ANY),
    Behaviour("chunks_without_end", frames(lambda body: _CHUNKED + _chunk(body), lingers=True)),
    Behaviour("chunks_cut_off", frames(lambda body: _CHUNKED + _chunk(body))),
    Behaviour("chunk_size_wrong", frames(lambda body: _CHUNKED + _chunk(body, b"3") + _chunk(b""))),
    Behaviour("chunk_size_is_text", frames(lambda body: _CHUNKED + _chunk(body, b"zz"))),
    Behaviour("chunk_size_negative", frames(lambda body: _CHUNKED + _chunk(body, b"-5"))),
    Behaviour("chunk_size_huge", frames(lambda body: _CHUNKED + _chunk(body, b"F" * 16))),
    Behaviour("chunk_size_of_5000_digits", frames(lambda body: _CHUNKED + _chunk(body, b"F" * 5000))),
    Behaviour(
        "chunks_of_one_byte",
        frames(lambda body: _CHUNKED + b"".join(_chunk(bytes([byte])) for byte in body) + _chunk(b""), streams=True),
        alone=ANSWERED,
    ),
    Behaviour("headers_of_1_mb", adds_headers(b"X-Long: " + b"a" * (1 << 20) + b"\r\n"), alone=ANY),
    Behaviour("headers_10000", adds_headers(b"".join(b"X-%d: 1\r\n" % i for i in range(10_000))), alone=ANY),
    Behaviour("header_without_colon", adds_headers(b"what is this\r\n")),
    Behaviour("header_with_nul", adds_headers(b"X-Nul: a\x00b\r\n"), alone=ANY),
    Behaviour("header_without_name", adds_headers(b": nameless\r\n")),
    Behaviour("header_not_ascii", adds_headers(b"X-Bytes: \xff\xfe\xc3\x28\r\n"), alone=ANY),
    Behaviour("header_folded", adds_headers(b"X-Fold: a\r\n  b\r\n"), alone=ANY),
    Behaviour("status_line_garbage", sends(b"HELLO 200 OK\r\n\r\n")),
    Behaviour("status_line_without_status", sends(b"HTTP/1.1 \r\n\r\n{}")),
    Behaviour("status_line_of_http_9", sends(b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\n{}")),
    Behaviour("status_line_endless", sends(b"HTTP/1.1 200 " + b"O" * (1 << 20))),
    Behaviour("reply_of_http_09", sends(b"<html>One.</html>")),
    Behaviour("reply_is_noise", sends(bytes(range(256)) * 40)),
    Behaviour("reply_is_smtp", sends(b"220 mail.example ESMTP\r\n")),
)
