"""The command line and environment that start an SGLang server, or the router in front of several."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

CPU_FLAGS = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-overlap-schedule"),
    "--sleep-on-idle",  # an idle server would keep a core busy with polling
    *("--mem-fraction-static", "0.7"),  # of what is free at its start; others start beside it
)
"""Flags of a server without a GPU; give `--max-total-tokens` too, or it takes that share of the memory."""


SERVER_PORTS = range(20_000, 32_000)
"""Linux gives ports from 32,768 on to connections, and macOS from 49,152 on."""


class LaunchCommand(Protocol):
    """What a server process is started with: a `ServerCommand` or a `RouterCommand`."""

    @property
    def url(self) -> str: ...
    @property
    def health_url(self) -> str: ...
    @property
    def command(self) -> list[str]: ...
    @property
    def environment(self) -> dict[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """Starts one SGLang server.

    python     interpreter of the environment that has SGLang
    model      checkpoint: a folder or a hub id
    flags      added to SGLang's command
    gpus       numbers of the GPUs that it may see; empty for the CPU
    packages   folder at the front of its import path; None for none
    variables  added to its environment
    """

    python: Path
    model: str
    port: int
    host: str = "127.0.0.1"
    flags: Sequence[str] = ()
    gpus: Sequence[int] = ()
    packages: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def health_url(self) -> str:
        """Address that replies with success once the server is up."""
        return f"{self.url}/health"

    @property
    def command(self) -> list[str]:
        """The program and its arguments."""
        named = ["--model-path", self.model, "--host", self.host, "--port", str(self.port)]
        device_flags = () if self.gpus else CPU_FLAGS
        # what `engine=sglang` reads of a stream: new tokens only, not all of them again in every event
        stream_flags = ("--incremental-streaming-output",)
        return [str(self.python), "-m", "sglang.launch_server", *named, *stream_flags, *device_flags, *self.flags]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables beyond those of this process."""
        path = prepend_import_path(self.packages)
        if self.gpus:
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)), **path, **self.variables}
        return {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **path, **self.variables}


@dataclass(frozen=True, kw_only=True)
class RouterCommand:
    """Starts SGLang's router; fields that are not described here are those of `ServerCommand`.

    workers            addresses of the servers behind it, which may still be loading
    startup_timeout_s  how long it waits for them
    prometheus_port    port of its metrics
    """

    python: Path
    workers: Sequence[str]
    port: int
    host: str = "127.0.0.1"
    flags: Sequence[str] = ()
    startup_timeout_s: int = 900
    prometheus_port: int = field(default_factory=lambda: find_free_port())

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def health_url(self) -> str:
        """See `ServerCommand`. The router's /health replies before it has a server, so this is another one."""
        return f"{self.url}/readiness"

    @property
    def command(self) -> list[str]:
        """The program and its arguments."""
        named = ["--host", self.host, "--port", str(self.port), "--prometheus-port", str(self.prometheus_port)]
        timeout = ["--worker-startup-timeout-secs", str(self.startup_timeout_s)]
        launcher = [str(self.python), "-m", "sglang_router.launch_router"]
        return [*launcher, "--worker-urls", *self.workers, *named, *timeout, *self.flags]

    @property
    def environment(self) -> dict[str, str]:
        """No environment variables beyond those of this process."""
        return {}


def find_free_port() -> int:
    """Returns a port of this machine that is free now, below those that the system itself gives to connections.

    A server binds its port once its model is loaded, minutes after it was found: one that the system had chosen would
    be given to others meanwhile. Raises: OSError where none of a hundred is free.
    """
    for port in random.SystemRandom().sample(SERVER_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port found from {SERVER_PORTS.start} to {SERVER_PORTS.stop - 1}")


def prepend_import_path(packages: Path | None) -> dict[str, str]:
    """Returns PYTHONPATH with this folder in front of what this process has there."""
    front = [str(packages)] if packages else []
    return {"PYTHONPATH": os.pathsep.join([*front, *filter(None, [os.environ.get("PYTHONPATH")])])}
