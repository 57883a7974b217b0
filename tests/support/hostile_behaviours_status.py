"""Hostile behaviours of statuses: refusals, absurd statuses, pauses asked for, redirects, secrets sent back."""

from __future__ import annotations

import json
from email.utils import formatdate

from tests.support.hostile_exchange import (
    ANSWERED,
    ANY,
    FAILED,
    OPENAI,
    REJECTED,
    Act,
    Behaviour,
    Exchange,
    answers,
    build_message,
    sends,
)

_ERROR = json.dumps({"error": {"message": "It is not my day."}})
_ESCAPES = json.dumps({"error": {"message": "\x1b[2J\x1b]0;owned\x07 \x00 red\x1b[31m\r\nforged: log line"}})
_DEEP = "[" * 100_000
_QUEUE_FULL = json.dumps({"error": {"message": "The request queue is full."}})
_TOO_LONG = json.dumps({"error": {"message": "This model's maximum context length is 8 tokens."}})

ELSEWHERE = "/elsewhere"
"""Path of the redirects; a client that follows them is seen there."""

_PAUSES = {
    "0": "0",
    "tiny": "1e-300",
    "negative": "-5",
    "huge": "1e300",
    "infinite": "inf",
    "nan": "nan",
    "text": "when pigs fly",
    "empty": "",
    "of_5000_digits": "9" * 5000,
    "year_9999": "Fri, 31 Dec 9999 23:59:59 GMT",
    "year_99999": "Fri, 31 Dec 99999 23:59:59 GMT",
    "past": formatdate(0, usegmt=True),
    "month_13": "2026-13-45",
    "zone_absurd": "Fri, 31 Dec 1999 23:59:59 +999999",
    "not_ascii": "\xff\xfe",
}
"""Retry-After headers, by what is wrong with them."""


def rejects_once(status: str) -> Act:
    """Returns the act that answers the first request with a status, and then healthily."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        if exchange.number == 0:
            await exchange.send(build_message(_ERROR.encode(), status))
        else:
            await exchange.send_reply(exchange.build_reply())

    return act


def echoes_key(status: str, *, as_text: bool = False) -> Act:
    """Returns the act that sends the request's Authorization header back in an error text."""

    async def act(exchange: Exchange) -> None:
        request = await exchange.read_request()
        text = f"refused: {request.fields.get('authorization')}; you sent {dict(request.fields)}"
        body = f"<html>{text}</html>" if as_text else json.dumps({"error": {"message": text}})
        await exchange.send(build_message(body.encode(), status))

    return act


async def echo_key_in_choices(exchange: Exchange) -> None:
    """Sends the key back where a parser's message would repeat it."""
    request = await exchange.read_request()
    key = request.fields.get("authorization")
    await exchange.send_reply({"choices": [{"text": {"key": key}, "finish_reason": key}], "usage": key})


async def redirect_to_itself(exchange: Exchange) -> None:
    request = await exchange.read_request()
    await exchange.send(build_message(b"", "301 Moved", f"Location: {request.path}\r\n"))


async def redirect_elsewhere(exchange: Exchange) -> None:
    """Points to another address of this server, where a request must not follow with its key."""
    request = await exchange.read_request()
    location = f"http://{request.fields['host']}{ELSEWHERE}/completions"
    await exchange.send(build_message(b"", "302 X", f"Location: {location}\r\n"))


def pauses(status: str, header: str) -> Act:
    return answers(_ERROR, status, f"Retry-After: {header}\r\n")


ROWS = (
    *(Behaviour(f"status_{code}", answers(_ERROR, f"{code} X"), alone=REJECTED) for code in (400, 413, 422)),
    *(Behaviour(f"status_{code}", answers(_ERROR, f"{code} X"), alone=FAILED) for code in (401, 402, 403, 404, 405)),
    *(Behaviour(f"status_{code}", answers(_ERROR, f"{code} X"), alone=FAILED) for code in (406, 408, 409, 410, 418)),
    *(Behaviour(f"status_{code}", answers(_ERROR, f"{code} X")) for code in (429, 500, 501, 502, 503, 504, 529)),
    *(Behaviour(f"status_{code}", answers(_ERROR, f"{code} X"), alone=FAILED) for code in (600, 999)),
    *(Behaviour(f"status_{code}", sends(b"HTTP/1.1 %b X\r\n\r\n{}" % code.encode())) for code in ("000", "99", "2OO")),
    *(Behaviour(f"status_{code}", answers("", f"{code} X"), alone=FAILED) for code in (202, 204, 206, 304)),
    Behaviour("status_1e9", sends(b"HTTP/1.1 1000000000 X\r\n\r\n{}")),
    Behaviour(
        "switches_protocols", sends(b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", lingers=True)
    ),
    Behaviour("status_400_once", rejects_once("400 X"), alone=ANSWERED | REJECTED),
    Behaviour("status_500_once", rejects_once("500 X"), alone=ANSWERED),
    Behaviour("status_429_once", rejects_once("429 X"), alone=ANSWERED),
    Behaviour("status_400_empty", answers("", "400 X"), alone=REJECTED),
    Behaviour("status_400_html", answers("<html>", "400 X"), alone=REJECTED),
    Behaviour("status_400_deep_json", answers(_DEEP, "400 X"), alone=FAILED),
    Behaviour("status_400_null", answers("null", "400 X"), alone=REJECTED),
    Behaviour("status_400_escapes", answers(_ESCAPES, "400 X"), alone=REJECTED),
    Behaviour("status_400_of_900_kb", answers(json.dumps({"error": "e" * 900_000}), "400 X"), alone=REJECTED),
    Behaviour("status_400_too_long", answers(_TOO_LONG, "400 X"), alone=REJECTED),
    Behaviour("status_500_escapes", answers(_ESCAPES, "500 X")),
    Behaviour("status_500_deep_json", answers(_DEEP, "500 X")),
    Behaviour("status_502_html", answers("<html><h1>Bad Gateway</h1></html>", "502 X")),
    Behaviour("status_503_text", answers("starting", "503 X")),
    Behaviour("status_503_queue_full", answers(_QUEUE_FULL, "503 X")),
    *(Behaviour(f"retry_after_{name}", pauses("429 X", header)) for name, header in _PAUSES.items()),
    *(Behaviour(f"busy_retry_after_{name}", pauses("503 X", _PAUSES[name])) for name in ("0", "huge", "nan")),
    Behaviour("retry_after_ms_nan", answers(_ERROR, "429 X", "Retry-After-Ms: nan\r\n")),
    Behaviour("retry_after_twice", answers(_ERROR, "429 X", "Retry-After: 0\r\nRetry-After: 1e9\r\n")),
    Behaviour("redirects_to_itself", redirect_to_itself, alone=FAILED),
    Behaviour("redirects_elsewhere", redirect_elsewhere, alone=FAILED),
    Behaviour("redirects_to_a_file", answers("", "307 X", "Location: file:///etc/hostname\r\n"), alone=FAILED),
    Behaviour("redirects_to_nonsense", answers("", "301 X", "Location: http://[::1\r\n"), alone=FAILED),
    Behaviour("sets_cookies", answers(_ERROR, "500 X", "".join(f"Set-Cookie: a{i}=1\r\n" for i in range(99)))),
    Behaviour("echoes_key_200", echoes_key("200 OK")),
    Behaviour("echoes_key_200_html", echoes_key("200 OK", as_text=True)),
    Behaviour("echoes_key_400", echoes_key("400 X"), alone=REJECTED),
    Behaviour("echoes_key_400_html", echoes_key("400 X", as_text=True), alone=REJECTED),
    Behaviour("echoes_key_401", echoes_key("401 X"), alone=FAILED),
    Behaviour("echoes_key_500", echoes_key("500 X")),
    Behaviour("echoes_key_503", echoes_key("503 X")),
    Behaviour("echoes_key_429", echoes_key("429 X")),
    Behaviour("echoes_key_in_choices", echo_key_in_choices, alone=ANY, dialects=OPENAI, alters_text=True),
)
