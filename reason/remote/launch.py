"""One SGLang server as a process of ours: its command, its start, whether it answers, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ON_CPU = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-overlap-schedule"),
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
    """

    python: Path
    model: str
    port: int
    host: str = "127.0.0.1"
    flags: Sequence[str] = ()
    gpus: Sequence[int] = ()
    packages: Path | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def command(self) -> list[str]:
        named = ["--model-path", self.model, "--host", self.host, "--port", str(self.port)]
        where = () if self.gpus else ON_CPU
        return [str(self.python), "-m", "sglang.launch_server", *named, *where, *self.flags]

    @property
    def environment(self) -> dict[str, str]:
        """What it needs besides what this process has."""
        before = [str(self.packages)] if self.packages else []
        path = {"PYTHONPATH": os.pathsep.join([*before, *filter(None, [os.environ.get("PYTHONPATH")])])}
        if self.gpus:
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)), **path}
        return {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", **path}


@dataclass
class ServerProcess:
    """A server and all processes it starts, a group of their own. Its output goes to `log`."""

    launch: Launch
    log: Path
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def start(self) -> None:
        """Starts it, or starts it again at the same address; returns before it is up."""
        # Without compiled files a start takes twice as long.
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment: Mapping[str, str] = inherited | self.launch.environment
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.launch.command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def ended(self) -> int | None:
        """Its exit status; None while it runs."""
        assert self._process is not None, "it was not started"
        return self._process.poll()

    def wait(self, patience_s: float) -> None:
        """Returns once it answers. Raises: RuntimeError with the end of its log if it does not."""
        import httpx2

        until = time.monotonic() + patience_s
        with httpx2.Client(timeout=10) as http:
            while time.monotonic() < until and self.ended is None:
                with suppress(httpx2.TransportError):
                    if http.get(f"{self.launch.url}/health").is_success:
                        return
                time.sleep(0.5)
        status = "does not answer" if self.ended is None else f"ended with {self.ended}"
        raise RuntimeError(f"the server at {self.launch.url} {status}; its log ends:\n{self.last_words()}")

    def last_words(self, characters: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:]

    def pause(self) -> None:
        """Takes the processor away from it: a server waits for work by asking for it all the time."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Gives it back."""
        self._signal(signal.SIGCONT)

    def stop(self, grace_s: float = 10.0) -> None:
        """Asks it to end, then makes all of it end. Calling it twice is harmless."""
        if self._process is not None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            self.kill()

    def kill(self) -> None:
        """Ends all of its processes at once. Calling it twice is harmless."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None  # its number may soon be another's

    def _signal(self, number: int) -> None:
        assert self._process is not None, "it was not started"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
