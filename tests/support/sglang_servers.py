"""Real SGLang servers on the CPU, with what stands in for compiled packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from decoding.sglang_plugin import CPU_STAND_INS
from reason.engines.launcher.server_command import ServerCommand, find_free_port
from reason.engines.launcher.server_process import ServerProcess
from tests.support.paths import ROOT

VENV = Path(os.environ.get("SGLANG_VENV", ROOT / ".venv-sglang")).absolute()
TARGET = ROOT / "reason" / "models" / "bundled" / "target"
DRAFT = TARGET.parent / "draft"
PATIENCE_S = 600  # a first start compiles Python; on a busy machine that takes minutes


class RealServer:
    """The bundled target, or another `model`, on a port of its own; `flags` are added to the command, `variables` to
    the environment. Returns before it is up."""

    def __init__(
        self,
        log: Path,
        *flags: str,
        tokens: int = 8192,
        model: Path = TARGET,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        launch = ServerCommand(
            python=VENV / "bin" / "python",
            model=str(model),
            port=find_free_port(),
            flags=("--max-total-tokens", str(tokens), *flags),
            packages=CPU_STAND_INS,
            variables=variables or {},
        )
        self.log, self.url = log, launch.url
        self._process = ServerProcess(launch, log)
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again at the same address."""
        self._process.start()

    def wait(self) -> RealServer:
        """Itself, once it answers. Raises: RuntimeError with the end of its log if it never does."""
        self._process.wait_until_healthy(PATIENCE_S)
        return self

    def kill(self) -> None:
        """All of its processes, at once. Calling it twice is harmless."""
        self._process.kill()
