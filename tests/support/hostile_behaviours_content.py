"""Hostile behaviours of content: sizes, compression, character sets, and JSON that is none or is no reply."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

from tests.support.hostile_exchange import (
    ANY,
    FAILED,
    Act,
    Behaviour,
    Exchange,
    answers,
    answers_json,
    build_message,
)

_MB = 1 << 20
_GZIP_HEAD, _ZLIB_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", b"\x78\x9c"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def pack_bomb(head: bytes, megabytes: int = 500) -> bytes:
    """Returns a thousandth of that, which decompresses to it; `head` is that of a format of DEFLATE."""
    pack = zlib.compressobj(9, wbits=-15)
    block = pack.compress(b"a" * _MB) + pack.flush(zlib.Z_FULL_FLUSH)  # such blocks can be repeated
    return head + block * megabytes


def encodes(encoding: str, encode: Callable[[bytes], bytes]) -> Act:
    """Returns the act that answers healthily, with a body that `encode` returns and a label for its encoding."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        body = encode(json.dumps(exchange.build_reply()).encode())
        await exchange.send(build_message(body, fields=f"Content-Encoding: {encoding}\r\n"))

    return act


def sends_megabytes(count: int, *, start: bytes, fields: str = "") -> Act:
    """Returns the act that answers with a body of this size."""

    async def act(exchange: Exchange) -> None:
        await exchange.read_request()
        length = len(start) + count * _MB
        await exchange.send(build_message(start, fields=fields, length=length))
        for _ in range(count * 16):
            await exchange.send(b"a" * (1 << 16))

    return act


def _double_gzip(body: bytes) -> bytes:
    return gzip.compress(gzip.compress(body))


def _fail_in_the_middle(body: bytes) -> bytes:
    packed = gzip.compress(body)
    return packed[:20] + bytes(byte ^ 0xFF for byte in packed[20:40]) + packed[40:]


_NO_JSON = {
    "empty": "",
    "blank": "  \r\n ",
    "html": "<!doctype html><html>Sign in to the hotel's network</html>",
    "text": "OK",
    "half": '{"choices": [{"te',
    "two_values": "{} {}",
    "bare_infinity": "Infinity",
    "nul": "\x00\x00\x00",
    "single_quotes": "{'choices': []}",
}
_NO_REPLY = {
    "null": "null",
    "true": "true",
    "number": "12",
    "float": "1e999",
    "nan": "NaN",
    "string": '"One."',
    "array": "[]",
    "array_of_null": "[null]",
    "object": "{}",
    "digits": "9" * 5000,
    "deep_arrays": "[" * 100_000,
    "deep_arrays_closed": "[" * 100_000 + "]" * 100_000,
    "deep_objects": '{"choices":' * 20_000 + "0" + "}" * 20_000,
    "deep_errors": '{"error":' * 900 + '"x"' + "}" * 900,
    "error_null_code": '{"error": {"code": null, "message": null}}',
    "error_number": '{"error": 7}',
    "error_list": '{"error": [[], {}]}',
    "error_code_huge": '{"error": {"code": 1e64, "message": "x"}}',
    "error_code_bool": '{"error": {"code": true, "message": "x"}}',
    "error_code_of_64_digits": '{"error": {"code": 1' + "0" * 64 + ', "message": "x"}}',
}
_DEEP_ERROR_OF_400 = '{"error":{"code":400,"message":' + '{"message":' * 900 + "1" + "}" * 902
_RAW = {
    "invalid_utf8": b'{"choices": [{"text": "\xff\xfe\xc3\x28", "finish_reason": "stop"}]',
    "invalid_utf8_only": b"\xff" * 300,
    "utf16": '{"choices": []}'.encode("utf-16"),
    "utf32": '{"choices": []}'.encode("utf-32"),
    "byte_order_mark": b"\xef\xbb\xbf{}",
}
_CHARSETS = ("wurst", "hex", "zlib", "punycode", "undefined", "utf-7", "idna", "a" * 10_000)

ROWS = (
    Behaviour("body_of_50_mb", sends_megabytes(50, start=b'{"text": "')),
    Behaviour("body_of_50_mb_of_error", sends_megabytes(50, start=b'{"error": "', fields="X-Length: 50\r\n")),
    Behaviour("body_of_5_gb", sends_megabytes(5000, start=b'{"text": "')),
    Behaviour("gzip_bomb", encodes("gzip", lambda body: pack_bomb(_GZIP_HEAD))),
    Behaviour("gzip_bomb_in_gzip", encodes("gzip, gzip", lambda body: gzip.compress(pack_bomb(_GZIP_HEAD)))),
    Behaviour("deflate_bomb", encodes("deflate", lambda body: pack_bomb(_ZLIB_HEAD))),
    Behaviour("gzip_undecodable", encodes("gzip", lambda body: b"this is no gzip at all")),
    Behaviour("gzip_truncated", encodes("gzip", lambda body: gzip.compress(body)[:-15])),
    Behaviour("gzip_without_checksum", encodes("gzip", lambda body: gzip.compress(body)[:-8]), alone=ANY),
    Behaviour("gzip_broken_in_the_middle", encodes("gzip", _fail_in_the_middle)),
    Behaviour("gzip_of_nothing", encodes("gzip", lambda body: b"")),
    Behaviour("gzip_label_alone", encodes("gzip", bytes)),
    Behaviour("gzip_twice", encodes("gzip, gzip", _double_gzip), alone=ANY),
    Behaviour("gzip_twice_labelled_once", encodes("gzip", _double_gzip)),
    Behaviour("gzip_and_noise", encodes("gzip", lambda body: gzip.compress(body) + b"noise"), alone=ANY),
    Behaviour("gzip_labelled_1000_times", encodes(", ".join(["gzip"] * 1000), gzip.compress)),
    Behaviour("deflate_undecodable", encodes("deflate", lambda body: b"\xff" * 99)),
    Behaviour("brotli_label", encodes("br", lambda body: b"\x8b\x08\x00\x00"), alone=ANY),
    Behaviour("zstd_undecodable", encodes("zstd", lambda body: _ZSTD_MAGIC + b"\xff" * 99)),
    Behaviour("zstd_truncated", encodes("zstd", lambda body: _ZSTD_MAGIC)),
    Behaviour("encoding_unknown", encodes("rot13", bytes), alone=ANY),
    Behaviour("error_undecodable", answers("no gzip", "500 X", "Content-Encoding: gzip\r\n")),
    *(Behaviour(f"json_{name}", answers_json(content)) for name, content in (_NO_JSON | _NO_REPLY).items()),
    *(Behaviour(f"json_{name}", answers_json(content)) for name, content in _RAW.items()),
    Behaviour("json_deep_error_of_400", answers_json(_DEEP_ERROR_OF_400), alone=FAILED),
    *(
        Behaviour(f"charset_{name[:9]}", answers("{", fields=f"Content-Type: text/plain; charset={name}\r\n"))
        for name in _CHARSETS
    ),
    Behaviour("labelled_as_picture", encodes("identity\r\nContent-Type: image/png", bytes), alone=ANY),
)
