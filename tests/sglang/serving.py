"""Real SGLang servers on the CPU, with what stands in for compiled packages."""

from __future__ import annotations

import os
from pathlib import Path

from reason.remote.launch import Launch, ServerProcess, free_port

HERE = Path(__file__).parent
VENV = Path(os.environ.get("SGLANG_VENV", HERE.parents[1] / ".venv-sglang"))
TARGET = HERE.parents[1] / "reason" / "models" / "bundled" / "target"
PATIENCE_S = 600  # a first start compiles Python; on a busy machine that takes minutes


class RealServer:
    """The bundled target on a port of its own; `flags` are added to the command. Returns before it is up."""

    def __init__(self, log: Path, *flags: str, tokens: int = 8192) -> None:
        launch = Launch(
            python=VENV / "bin" / "python",
            model=str(TARGET),
            port=free_port(),
            flags=("--max-total-tokens", str(tokens), *flags),
            packages=HERE / "shim",
        )
        self.log, self.url = log, launch.url
        self._process = ServerProcess(launch, log)
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again at the same address."""
        self._process.start()

    def wait(self) -> RealServer:
        """Itself, once it answers. Raises: RuntimeError with the end of its log if it never does."""
        self._process.wait(PATIENCE_S)
        return self

    def kill(self) -> None:
        """All of its processes, at once. Calling it twice is harmless."""
        self._process.kill()
