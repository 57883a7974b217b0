"""What the server itself is told: where it listens, how much it takes on, what it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from decoding.validation import is_count


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """`conf/serve.yaml` says what each is. Raises: ValueError naming the setting."""

    host: str
    port: int
    api_key: str | None
    presets: tuple[str, ...] | None
    concurrency: int
    queue: int
    timeout: float | None
    body_kib: int
    largest: int
    keep: int
    folder: Path | None
    grace: float

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise ValueError(f"host must be a name or an address, got {self.host!r}")
        if not is_count(self.port) or self.port > 65535:
            raise ValueError(f"port must be an int in [0, 65535], got {self.port!r}")
        if self.api_key is not None and (not isinstance(self.api_key, str) or not self.api_key.isascii()):
            raise ValueError("api_key must be text of ASCII characters or null")
        if self.api_key == "":
            raise ValueError("api_key is empty; null asks for none")
        for name, least in (("concurrency", 1), ("queue", 0), ("body_kib", 1), ("largest", 1), ("keep", 1)):
            value = getattr(self, name)
            if not is_count(value, at_least=least):
                raise ValueError(f"{name} must be an int >= {least}, got {value!r}")
        for name, value in (("timeout", self.timeout), ("grace", self.grace)):
            if value is None and name == "timeout":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number of seconds > 0, got {value!r}")
        if self.presets is not None:
            if not isinstance(self.presets, list | tuple) or not self.presets:
                raise ValueError(f"presets must be a list of names or null, got {self.presets!r}")
            object.__setattr__(self, "presets", tuple(map(str, self.presets)))
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(str(self.folder)))
