"""The command that starts an SGLang server, or the router in front of several."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ON_CPU = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-overlap-schedule"),
    "--sleep-on-idle",  # an idle server would keep a core busy with asking for work
    *("--mem-fraction-static", "0.7"),  # of what is free as it starts, and others start beside it
)
"""Flags of a server without a GPU; give `--max-total-tokens` too, or it takes that share of the memory."""


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a server is started with.

    python    of the environment that has SGLang
    model     its checkpoint
    flags     added to SGLang's command
    gpus      numbers of those it may see; empty for none, and then it runs on the CPU
    packages  a folder that its Python looks into first; None for none
    variables added to its environment
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
    def health(self) -> str:
        """What answers with success once it is up."""
        return f"{self.url}/health"

    @property
    def command(self) -> list[str]:
        named = ["--model-path", self.model, "--host", self.host, "--port", str(self.port)]
        where = () if self.gpus else ON_CPU
        return [str(self.python), "-m", "sglang.launch_server", *named, *where, *self.flags]

    @property
    def environment(self) -> dict[str, str]:
        """What it needs besides what this process has."""
        path = search_path(self.packages)
        if self.gpus:
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)), **path, **self.variables}
        return {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **path, **self.variables}


@dataclass(frozen=True, kw_only=True)
class RouterLaunch:
    """What SGLang's router is started with; a setting that is missing here is one of `Launch`.

    workers     addresses of the servers it deals requests to, which may still be loading
    prometheus  the port of its metrics
    """

    python: Path
    workers: Sequence[str]
    port: int
    host: str = "127.0.0.1"
    flags: Sequence[str] = ()
    patience_s: int = 900
    prometheus: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def health(self) -> str:
        """See `Launch.health`. Its own /health answers before it has a server."""
        return f"{self.url}/readiness"

    @property
    def command(self) -> list[str]:
        named = ["--host", self.host, "--port", str(self.port), "--prometheus-port", str(self.prometheus)]
        waits = ["--worker-startup-timeout-secs", str(self.patience_s)]
        launcher = [str(self.python), "-m", "sglang_router.launch_router"]
        return [*launcher, "--worker-urls", *self.workers, *named, *waits, *self.flags]

    @property
    def environment(self) -> dict[str, str]:
        """Nothing besides what this process has."""
        return {}


def search_path(packages: Path | None) -> dict[str, str]:
    """The environment in which Python looks into this folder first, then where this one was told to."""
    before = [str(packages)] if packages else []
    return {"PYTHONPATH": os.pathsep.join([*before, *filter(None, [os.environ.get("PYTHONPATH")])])}
