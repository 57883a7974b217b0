"""Settings of the server itself (`conf/serve.yaml`): address, limits, stored trees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decoding.validation import require_count, require_number, require_positive
from reason.serve.prices import TokenPrices

COUNTS = {
    "port": (0, 65_535),
    "branches": (1, 1 << 20),
    "queue": (0, 100_000),
    "attempts": (1, 1000),
    "body_kib": (1, 1 << 20),
    "largest": (1, 2**31 - 1),
    "keep": (1, 1_000_000),
    "replays": (0, 100_000),
    "max_connections": (1, 65_536),
}
"""Smallest and largest value of each whole number."""

MAX_WAIT_S = 3600

ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.IGNORECASE)


PUBLIC_URL = re.compile(ORIGIN.pattern + r"(/[!-~]*)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """`conf/serve.yaml` describes each setting. Raises: ValueError naming the setting."""

    host: str
    port: int
    api_key: str | None
    presets: tuple[str, ...] | None
    branches: int
    concurrency: int | None
    queue: int
    attempts: int
    timeout: float | None
    body_kib: int
    largest: int
    keep: int
    replays: int
    folder: Path | None
    public_url: str | None
    prices: TokenPrices | None
    grace: float
    cors_origins: tuple[str, ...] | None
    max_connections: int
    receive_timeout_s: float
    send_timeout_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise ValueError(f"host must be a name or an address, got {self.host!r}")
        if self.api_key is not None and (not isinstance(self.api_key, str) or not self.api_key.isascii()):
            raise ValueError("api_key must be text of ASCII characters or null")
        if self.api_key == "":
            raise ValueError("api_key is empty; null turns the check off")
        for name, (low, high) in COUNTS.items():
            require_count(name, getattr(self, name), at_least=low, at_most=high)
        if self.concurrency is not None:
            require_count("concurrency", self.concurrency, at_least=1, at_most=4096)
        if self.timeout is not None:
            require_positive("timeout", self.timeout)
        require_positive("grace", self.grace, at_most=MAX_WAIT_S)
        for name in ("receive_timeout_s", "send_timeout_s"):
            require_number(name, getattr(self, name), low=0.1, high=MAX_WAIT_S)
        if self.presets is not None:
            if not isinstance(self.presets, list | tuple) or not self.presets:
                raise ValueError(f"presets must be a list of names or null, got {self.presets!r}")
            object.__setattr__(self, "presets", tuple(map(str, self.presets)))
        if self.public_url is not None:
            object.__setattr__(self, "public_url", _valid_url(self.public_url))
        if self.prices is not None and not isinstance(self.prices, TokenPrices):
            object.__setattr__(self, "prices", _make_prices(self.prices))
        if self.cors_origins is not None:
            object.__setattr__(self, "cors_origins", _valid_origins(self.cors_origins))
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(str(self.folder)))


def _valid_url(given: object) -> str:
    """Returns an address without a slash at its end. Raises: ValueError."""
    if not isinstance(given, str) or not PUBLIC_URL.fullmatch(given):
        raise ValueError(f"public_url must be http(s)://host, perhaps with a port and a path, or null; got {given!r}")
    return given.rstrip("/")


def _make_prices(given: object) -> TokenPrices:
    """Returns the prices. Raises: ValueError for other names than theirs."""
    if not isinstance(given, Mapping) or not {"input", "output"} <= given.keys() <= {"input", "output", "cached"}:
        raise ValueError(f"prices must be {{input: ..., output: ...}}, perhaps with cached, or null; got {given!r}")
    return TokenPrices(**given)


def _valid_origins(given: object) -> tuple[str, ...]:
    """Returns the origins as browsers send them, in lower case. Raises: ValueError naming a wrong one."""
    if given in (["*"], ("*",)):
        return ("*",)
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"cors_origins must be a list of origins, [*] for all, or null; got {given!r}")
    for origin in given:
        if not isinstance(origin, str) or not ORIGIN.fullmatch(origin):
            raise ValueError(
                f"cors_origins must be http(s)://host or http(s)://host:port without a path, got {origin!r}"
            )
    return tuple(str(origin).lower() for origin in given)
