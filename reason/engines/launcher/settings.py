"""The settings of scripts/serve_models.py, each checked by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from decoding.validation import is_count

NAMES = ("target", "draft", "prm", "router")
LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class Common:
    """What holds for all.

    servers     which of `NAMES` are started
    python      of the environment that has SGLang, or that environment's folder; None for the one we run in
    packages    a folder which that Python looks into first; None for none
    host        what they listen on, and are reached at
    patience_s  how long they may take to load

    Raises: ValueError naming the setting.
    """

    servers: Sequence[str] = ("target",)
    python: str | None = None
    packages: str | None = None
    host: str = "127.0.0.1"
    patience_s: int = 900

    def __post_init__(self) -> None:
        if not isinstance(self.servers, list | tuple) or not self.servers:
            raise ValueError(f"servers must be a list of {', '.join(NAMES)}; got {self.servers!r}")
        for name in self.servers:
            if name not in NAMES:
                close = get_close_matches(str(name), NAMES, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ValueError(f"servers: there is no server {name!r}{hint}; they are {', '.join(NAMES)}")
        if len(set(self.servers)) < len(self.servers):
            raise ValueError(f"servers must differ, got {', '.join(self.servers)}")
        if "router" in self.servers and "target" not in self.servers:
            raise ValueError("servers: router is in front of target; add target")
        for name in ("python", "packages"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a path or null, got {getattr(self, name)!r}")
        if not isinstance(self.host, str) or not self.host:
            raise ValueError(f"host must be an address or name of this machine, got {self.host!r}")
        if not is_count(self.patience_s, at_least=1):
            raise ValueError(f"patience_s must be an int >= 1, got {self.patience_s!r}")


@dataclass(frozen=True, kw_only=True)
class Listening:
    """What listens: at `port` (0 is a free one), with `flags` added to its command.

    Raises: ValueError naming the setting.
    """

    port: int
    flags: Sequence[str | int | float] = ()

    def __post_init__(self) -> None:
        if not is_count(self.port, at_least=0) or self.port > LAST_PORT:
            raise ValueError(f"port must be an int from 0 to {LAST_PORT}, got {self.port!r}")
        flags = self.flags
        if not isinstance(flags, list | tuple) or not all(type(flag) in (str, int, float) for flag in flags):
            raise ValueError(f"flags must be a list like [--max-running-requests,64], got {flags!r}")


@dataclass(frozen=True, kw_only=True)
class Served(Listening):
    """Servers of one checkpoint.

    path         the checkpoint; None is what the section says else
    workers      servers, each with the whole model; ports count on from `port`
    tp           GPUs that a worker divides the model among
    gpus         their numbers, `tp` for each worker; none is the CPU
    tokens       of KV in each worker (--max-total-tokens); None is what there is room for, on the CPU 16,384
    speculation  SGLang's --speculative-algorithm; None decodes token by token

    Raises: ValueError naming the setting.
    """

    path: str | None = None
    workers: int = 1
    tp: int = 1
    gpus: Sequence[int] = ()
    tokens: int | None = None
    speculation: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("workers", "tp", "tokens"):
            value = getattr(self, name)
            if not is_count(value, at_least=1) and not (name == "tokens" and value is None):
                raise ValueError(f"{name} must be an int >= 1, got {value!r}")
        if not isinstance(self.gpus, list | tuple) or not all(is_count(gpu, at_least=0) for gpu in self.gpus):
            raise ValueError(f"gpus must be a list of numbers like [0,1], got {self.gpus!r}")
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus must differ, got {list(self.gpus)}")
        if self.gpus and len(self.gpus) != self.workers * self.tp:
            wanted = f"{self.workers} worker(s) of tp={self.tp}"
            raise ValueError(f"gpus must be {self.workers * self.tp} for {wanted}, got {list(self.gpus)}")
        if self.tp > 1 and not self.gpus:
            raise ValueError(f"tp={self.tp} needs gpus")
        if self.port and self.port + self.workers - 1 > LAST_PORT:
            raise ValueError(f"port={self.port} leaves no {self.workers} ports up to {LAST_PORT}")
        for name in ("path", "speculation"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a text or null, got {getattr(self, name)!r}")
        if self.speculation is not None and self.speculation.startswith("REASON") and self.tp > 1:
            raise ValueError(f"speculation={self.speculation} is for tp=1, got tp={self.tp}")


@dataclass(frozen=True, kw_only=True)
class Target(Served):
    """`model` is a member of conf/model, whose checkpoint is served."""

    model: str = "bundled"


@dataclass(frozen=True, kw_only=True)
class Draft(Served):
    """`router` is a member of conf/router: who will say which steps this model writes. `vocabulary` is `own` if it is
    not that of target."""

    router: str = "arbitrage"
    vocabulary: str = "same"


@dataclass(frozen=True, kw_only=True)
class Judge(Served):
    """`format` is a member of conf/scorer, whose checkpoint is served."""

    format: str = "prm"
