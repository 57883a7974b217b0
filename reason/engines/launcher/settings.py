"""Settings of scripts/serve_models.py, one class for each section; each checks itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from decoding.sglang_plugin import COUPLED_ALGORITHM, OUR_ALGORITHMS
from decoding.sglang_plugin.settings import DRAFTS
from decoding.validation import is_count, require_choice, require_count, require_positive, require_switch
from reason.config.renamed_settings import warn_renamed

SERVER_NAMES = ("target", "small", "prm", "router")
MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class LauncherSettings:
    """Settings of all servers together: section `serve_models`.

    servers            which of `SERVER_NAMES` are started
    python             interpreter of the environment that has SGLang, or its folder; None for the one running this
    packages           folder at the front of that interpreter's import path; None for none
    host               address that the servers listen on and are reached at
    startup_timeout_s  how long they may take to load
    drain_timeout_s    how long running requests may take to end after a signal
    restarts           how often each server that dies is started again
    gpu_gib            memory of each GPU; None asks the driver
    nodes              addresses of all machines that run the same command; the printed line has the servers of all
    dry_run            prints what would be started, and checks neither packages nor ports

    Raises: ValueError naming the setting.
    """

    servers: Sequence[str] = ("target",)
    python: str | None = None
    packages: str | None = None
    host: str = "127.0.0.1"
    startup_timeout_s: int = 900
    drain_timeout_s: int = 60
    restarts: int = 1
    gpu_gib: float | None = None
    nodes: Sequence[str] = ()
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.servers, list | tuple) or not self.servers:
            raise ValueError(f"servers must be a list of {', '.join(SERVER_NAMES)}; got {self.servers!r}")
        if "draft" in self.servers:
            warn_renamed("serve_models.servers=[draft]", "serve_models.servers=[small]")
            object.__setattr__(self, "servers", tuple("small" if name == "draft" else name for name in self.servers))
        for name in self.servers:
            if name not in SERVER_NAMES:
                close = get_close_matches(str(name), SERVER_NAMES, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ValueError(f"servers: there is no server {name!r}{hint}; they are {', '.join(SERVER_NAMES)}")
        if len(set(self.servers)) < len(self.servers):
            raise ValueError(f"servers must differ, got {', '.join(self.servers)}")
        if "router" in self.servers and "target" not in self.servers:
            raise ValueError("servers: router is in front of target; add target")
        for name in ("python", "packages"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a path or null, got {getattr(self, name)!r}")
        if not isinstance(self.host, str) or not self.host:
            raise ValueError(f"host must be an address or name of this machine, got {self.host!r}")
        require_count("startup_timeout_s", self.startup_timeout_s, at_least=1)
        require_count("drain_timeout_s", self.drain_timeout_s)
        require_count("restarts", self.restarts)
        if self.gpu_gib is not None:
            require_positive("gpu_gib", self.gpu_gib)
        if not isinstance(self.nodes, list | tuple) or not all(isinstance(n, str) and n for n in self.nodes):
            raise ValueError(f"nodes must be a list of addresses like [node1,node2], got {self.nodes!r}")
        require_switch("dry_run", self.dry_run)


@dataclass(frozen=True, kw_only=True)
class ListenerSettings:
    """A process that listens at `port` (0: a free one), with `flags` added to its command: section `router`.

    Raises: ValueError naming the setting.
    """

    port: int
    flags: Sequence[str | int | float] = ()

    def __post_init__(self) -> None:
        if not is_count(self.port, at_least=0) or self.port > MAX_PORT:
            raise ValueError(f"port must be an int from 0 to {MAX_PORT}, got {self.port!r}")
        flags = self.flags
        if not isinstance(flags, list | tuple) or not all(type(flag) in (str, int, float) for flag in flags):
            raise ValueError(f"flags must be a list like [--max-running-requests,64], got {flags!r}")


@dataclass(frozen=True, kw_only=True)
class ModelServerSettings(ListenerSettings):
    """Servers of one checkpoint.

    path         the checkpoint; None for that of the section's model or format
    workers      number of servers, each with the whole model, at ports from `port` on
    tp           number of GPUs that a worker divides the model among
    gpus         their numbers, `tp` for each worker; empty for the CPU
    tokens       KV size of each worker in tokens (--max-total-tokens); None for all free memory, on the CPU 16,384
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
        require_count("workers", self.workers, at_least=1)
        require_count("tp", self.tp, at_least=1)
        require_count("tokens", self.tokens, at_least=1, or_null=True)
        if not isinstance(self.gpus, list | tuple) or not all(is_count(gpu, at_least=0) for gpu in self.gpus):
            raise ValueError(f"gpus must be a list of numbers like [0,1], got {self.gpus!r}")
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus must differ, got {list(self.gpus)}")
        if self.gpus and len(self.gpus) != self.workers * self.tp:
            servers = f"{self.workers} worker(s) of tp={self.tp}"
            raise ValueError(f"gpus must be {self.workers * self.tp} for {servers}, got {list(self.gpus)}")
        if self.tp > 1 and not self.gpus:
            raise ValueError(f"tp={self.tp} needs gpus")
        if self.port and self.port + self.workers - 1 > MAX_PORT:
            raise ValueError(f"port={self.port} leaves no {self.workers} ports up to {MAX_PORT}")
        for name in ("path", "speculation"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a text or null, got {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings(ModelServerSettings):
    """Servers that generate, so that they may speculate.

    table       folder of draft tables that last (--reason-table)
    draft       kind of the draft model or head whose trees are merged with n-grams (--reason-draft)
    draft_path  its checkpoint

    Raises: ValueError naming the setting.
    """

    table: str | None = None
    draft: str | None = None
    draft_path: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("table", "draft_path"):
            if getattr(self, name) is not None and not (isinstance(getattr(self, name), str) and getattr(self, name)):
                raise ValueError(f"{name} must be a path or null, got {getattr(self, name)!r}")
        if self.table is not None and self.speculation not in OUR_ALGORITHMS:
            raise ValueError(f"table needs speculation={COUPLED_ALGORITHM}, got {self.speculation}")
        if self.draft is not None:
            require_choice("draft", self.draft, DRAFTS)
            if self.speculation != COUPLED_ALGORITHM:
                raise ValueError(f"draft needs speculation={COUPLED_ALGORITHM}, got {self.speculation}")
        if (self.draft is None) != (self.draft_path is None):
            raise ValueError(f"draft_path goes with draft={'|'.join(DRAFTS)}, got {self.draft_path} with {self.draft}")


@dataclass(frozen=True, kw_only=True)
class TargetSettings(GeneratorSettings):
    """Servers of the target model; `model` is an option of conf/model, whose checkpoint is served."""

    model: str = "bundled"


@dataclass(frozen=True, kw_only=True)
class SmallModelSettings(GeneratorSettings):
    """Servers of the small model that a router chooses for some steps.

    router      an option of conf/router
    vocabulary  `own` if it differs from that of the target model, else `same`
    """

    router: str = "arbitrage"
    vocabulary: str = "same"


@dataclass(frozen=True, kw_only=True)
class RewardModelSettings(ModelServerSettings):
    """Servers of the reward model; `format` is an option of conf/scorer, whose checkpoint is served."""

    format: str = "prm"
