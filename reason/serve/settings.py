"""Settings of the server itself (`conf/serve.yaml`): address, load limits, kept trees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from decoding.validation import is_count, require_count, require_positive


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """`conf/serve.yaml` describes each setting. Raises: ValueError naming the setting."""

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
            raise ValueError("api_key is empty; null turns the check off")
        require_count("queue", self.queue)
        for name in ("concurrency", "body_kib", "largest", "keep"):
            require_count(name, getattr(self, name), at_least=1)
        if self.timeout is not None:
            require_positive("timeout", self.timeout)
        require_positive("grace", self.grace)
        if self.presets is not None:
            if not isinstance(self.presets, list | tuple) or not self.presets:
                raise ValueError(f"presets must be a list of names or null, got {self.presets!r}")
            object.__setattr__(self, "presets", tuple(map(str, self.presets)))
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(str(self.folder)))
