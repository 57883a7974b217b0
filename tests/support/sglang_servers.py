"""Real SGLang servers on the CPU, with stand-ins for compiled packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decoding.sglang_plugin import CPU_STAND_INS
from reason.engines.launcher.server_command import ServerCommand, find_free_port
from reason.engines.launcher.server_process import ServerProcess
from tests.support.paths import ROOT

VENV = Path(os.environ.get("SGLANG_VENV", ROOT / ".venv-sglang")).absolute()
TARGET = ROOT / "reason" / "models" / "bundled" / "target"
DRAFT = TARGET.parent / "draft"
PATIENCE_S = 600  # a first start compiles Python; on a busy machine that takes minutes
IS_INSTALLED = (VENV / "bin" / "python").exists()
NOT_INSTALLED = f"SGLang is not installed in {VENV.name}; tests/sglang/setup.sh does it (make sglang)"


class RealServer:
    """A server of the bundled target, or another `model`, on a free port. The constructor does not wait for it.

    `flags` are added to the command, `variables` to the environment.
    """

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
        """Starts the server, or restarts it at the same address."""
        self._process.start()

    def wait(self) -> RealServer:
        """Returns the server once it answers. Raises: RuntimeError with the end of its log if it never does."""
        self._process.wait_until_healthy(PATIENCE_S)
        return self

    def kill(self) -> None:
        """Kills all of its processes at once; may be called twice."""
        self._process.kill()


@dataclass(frozen=True)
class SharedServers:
    """The servers that several test modules share.

    plain        decodes token by token; a short queue
    speculating  two with coupled acceptance, the second adaptive, with less KV than its requests need
    recursive    recursive rejection
    two_ranks    coupled acceptance on two ranks of the small bundled model, whose two heads can be divided
    """

    plain: RealServer
    speculating: tuple[RealServer, RealServer]
    recursive: RealServer
    two_ranks: RealServer
