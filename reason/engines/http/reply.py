"""Replies of servers as they are read: limits, decompression within them, and the JSON of a body."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2

from reason.engines.http.errors import ResponseLost
from reason.engines.http.masking import SecretMask

_BYTES_PER_VALUE = 5  # of the size limit; log-probabilities have 7. JSON of less is slow and large to parse
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_PIECE = 2**18  # bytes decompressed at once

WHOLE_STATUSES = (200, 201, 202, 203)
"""Statuses of success that come with a whole body."""


@dataclass(frozen=True)
class ReplyLimits:
    """Limits of one reply.

    total_s    seconds from sending the request to the last byte of the reply, of a stream to its first token
    idle_s     longest silence once the reply has begun
    max_bytes  size of its body, compressed and not; of a stream, what comes between two tokens
    """

    total_s: float
    idle_s: float
    max_bytes: int


@dataclass(frozen=True)
class Reply:
    """A whole reply within the limits, whatever its status."""

    url: str
    status: int
    headers: httpx2.Headers
    body: bytes
    mask: SecretMask
    max_bytes: int

    @property
    def has_content(self) -> bool:
        """Whether the status says that the body is what was requested."""
        return self.status in WHOLE_STATUSES

    @property
    def is_success(self) -> bool:
        """Whether the status is one of success, with or without a body."""
        return 200 <= self.status < 300

    def parse_json(self) -> object:
        """Returns the JSON of the body, without the key. Raises: ResponseLost."""
        if not self.body.strip():
            raise ResponseLost(f"{self.url} sent an empty reply (status {self.status})")
        try:
            return parse_json(self.body, self.mask, self.max_bytes)
        except ValueError:
            raise ResponseLost(f"{self.url} sent something that is not JSON: {self.describe_text(80)!r}") from None

    def describe_text(self, max_length: int = 500) -> str:
        """Returns the beginning of the body for a message."""
        return self.mask.describe(self.body.decode(errors="replace"), max_length)


def parse_json(body: bytes, mask: SecretMask, max_bytes: int) -> object:
    """Returns the JSON of a body, without the key. Raises: ValueError, also where it is nested or split too finely."""
    # A parser makes objects of up to 24 times the size of its text and lets no other thread run meanwhile, so `close`
    # would have to wait. Counting takes a hundredth of its time.
    if sum(body.count(mark) for mark in (b",", b":", b"[", b"{")) > max_bytes // _BYTES_PER_VALUE:
        raise ValueError("too many values")
    try:
        return mask.hide_in_json(body, json.loads(body))
    except RecursionError:
        raise ValueError("nested too deeply") from None


class BodyDecoder:
    """Decompresses a body piece by piece, `max_bytes` of it at most."""

    def __init__(self, url: str, headers: httpx2.Headers, max_bytes: int) -> None:
        self._url, self._max_bytes = url, max_bytes
        self._num_received = self._num_decoded = 0
        encoding = headers.get("content-encoding", "").strip().lower() or "identity"
        if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
            raise ResponseLost(f"{url} sent a reply in an encoding that was not requested")
        self._inflater = None if encoding == "identity" else zlib.decompressobj(_GZIP_OR_ZLIB)
        if headers.get("content-length", "").isdecimal():
            self._require_size(int(headers["content-length"]))

    def decode(self, received: bytes) -> Iterator[bytes]:
        """Yields the next pieces. Raises: ResponseLost where the limit is passed or the encoding is wrong."""
        self._num_received += len(received)
        self._require_size(self._num_received)
        for piece in (received,) if self._inflater is None else self._inflate(self._inflater, received):
            self._num_decoded += len(piece)
            self._require_size(self._num_decoded)
            yield piece

    def begin_limit(self) -> None:
        """Counts bytes from here on: of a stream, the limit is on what comes between two tokens. *Mutates*."""
        self._num_received = self._num_decoded = 0

    def finish(self) -> None:
        """Checks that the body was whole. Raises: ResponseLost."""
        if self._inflater is not None and self._num_received and not self._inflater.eof:
            raise ResponseLost(f"{self._url} broke off in the middle of a compressed reply")

    def _inflate(self, inflater: zlib._Decompress, received: bytes) -> Iterator[bytes]:
        while received:
            if inflater.eof:
                raise ResponseLost(f"{self._url} sent more than the compressed reply")
            try:
                yield inflater.decompress(received, _PIECE)
            except zlib.error as error:
                raise ResponseLost(f"{self._url} sent a reply that cannot be decompressed ({error})") from None
            received = inflater.unconsumed_tail or inflater.unused_data

    def _require_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise ResponseLost(f"{self._url} sent more than {self._max_bytes / 2**20:g} MB (max_reply_mb)")
