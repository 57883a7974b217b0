"""Real SGLang servers on the CPU, each a process group of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2

HERE = Path(__file__).parent
VENV = Path(os.environ.get("SGLANG_VENV", HERE.parents[1] / ".venv-sglang"))
TARGET = HERE.parents[1] / "reason" / "models" / "bundled" / "target"
ON_CPU = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-overlap-schedule"),
    *("--mem-fraction-static", "0.2"),
)
PATIENCE_S = 600  # a first start compiles Python; on a busy machine that takes minutes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealServer:
    """The bundled target on a port of its own; `flags` are added to the command. Returns before it is up."""

    def __init__(self, log: Path, *flags: str, tokens: int = 8192) -> None:
        self.log, self.port = log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(str(VENV / "bin" / "python"), "-m", "sglang.launch_server", "--model-path", str(TARGET)),
            *("--host", "127.0.0.1", "--port", str(self.port), *ON_CPU, "--max-total-tokens", str(tokens), *flags),
        ]
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again at the same address."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE / "shim")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> RealServer:
        """Itself, once it answers. Raises: RuntimeError with the end of its log if it never does."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                if httpx2.get(f"{self.url}/health", timeout=10).is_success:
                    return self
            except httpx2.TransportError:
                pass
            time.sleep(0.5)
        said = self.log.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"the server ended with {self._process.poll()}, or never answered:\n{said}")

    def kill(self) -> None:
        """All of its processes, at once. Calling it twice is harmless."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
