"""Starts the SGLang servers of a run on this machine, prints how to use them, and stops them all with Ctrl-C.

reason serve-models                                                     the bundled model
reason serve-models serve_models.servers=[target,prm]                   and the reward model
reason serve-models target.gpus=[0,1] target.workers=2                  one on each GPU
reason serve-models target.model=qwen2.5-math-7b target.gpus=[0,1] target.tp=2   divided among two
reason serve-models serve_models.python=.venv-sglang serve_models.packages=cpu_stand_ins   on a CPU

Settings and logs: conf/serve_models.yaml. Prints the command line of `reason solve` once all servers are up. If one
server ends, the others are stopped, with exit code 1 and the end of its log.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from reason.commands.typed import called_as
from reason.config import compose
from reason.engines.launcher.server_group import ServerExited, ServerGroup
from reason.engines.launcher.solve_command import format_solve_command
from reason.engines.launcher.spec import LaunchSpec, validate_launch
from reason.runs.command import FAILED, handle_termination, report_config_errors


@hydra.main(version_base="1.3", config_path="pkg://reason.conf", config_name="serve_models")
def main(cfg: DictConfig) -> None:
    """Serves until a signal arrives; a wrong setting ends it with one sentence."""
    try:
        with report_config_errors("serve_models"):
            run_servers(validate_launch(compose.resolve_settings(cfg)), Path(HydraConfig.get().runtime.output_dir))
    except ServerExited as error:
        print(f"serve_models: {error}", file=sys.stderr)
        sys.exit(FAILED)


def run_servers(spec: LaunchSpec, folder: Path) -> None:
    """Starts the servers, prints how to use them, and waits for a signal. Raises: ServerExited."""
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The handler only sets a flag, so that no server is ever half started; a second signal changes nothing.
        signal.signal(number, lambda number, _: signals.append(number))
    print_line(f"starting {', '.join(spec.commands)}; logs in {folder}")
    try:
        with ServerGroup(spec.commands, folder, should_stop=lambda: bool(signals), report=print_line) as servers:
            if servers.start_all(spec.startup_timeout_s):
                command = format_solve_command(spec.solve_settings, called_as("solve"))
                print_line(f"to solve:\n{command}\nCtrl-C stops the servers")
                servers.wait_until_stopped()
            print_line("stopping")
    finally:
        print_line("stopped")


def print_line(text: str) -> None:
    print(text, flush=True)


def run_program() -> None:
    """Runs `main`; settings that Hydra cannot read end without a traceback."""
    with handle_termination("serve_models"):
        main()
