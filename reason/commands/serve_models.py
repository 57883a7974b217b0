"""Starts the SGLang servers of a run on this machine, prints how to use them, and stops them all with Ctrl-C.

reason serve-models                                                     the bundled model
reason serve-models serve_models.servers=[target,prm]                   and the reward model
reason serve-models target.gpus=[0,1] target.workers=2                  one on each GPU
reason serve-models target.model=qwen2.5-math-7b target.gpus=[0,1] target.tp=2   divided among two
reason serve-models serve_models.python=.venv-sglang serve_models.packages=cpu_stand_ins   on a CPU

reason serve-models +recipe=gpus_8 serve_models.dry_run=true             what one node with 8 GPUs would run

Settings and logs: conf/serve_models.yaml. Says what fits into memory, and prints the command line of `reason solve`
once all servers are up. A server that dies is started again once; then the others are stopped, with exit code 1 and the
end of its log. At the first signal running requests may end, at the second everything stops.
"""

from __future__ import annotations

import shlex
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
            spec = validate_launch(compose.resolve_settings(cfg))
            for line in spec.memory:
                print_line(f"memory of {line}")
            if spec.common.dry_run:
                show_commands(spec)
            else:
                run_servers(spec, Path(HydraConfig.get().runtime.output_dir))
    except ServerExited as error:
        print(f"serve_models: {error}", file=sys.stderr)
        sys.exit(FAILED)


def show_commands(spec: LaunchSpec) -> None:
    """Prints what would be started, and how it would be used."""
    for name, launch in spec.commands.items():
        variables = [f"{key}={value}" for key, value in launch.environment.items() if key != "PYTHONPATH"]
        print_line(f"{name}: {shlex.join([*variables, *launch.command])}")
    print_line(f"to solve:\n{format_solve_command(spec.solve_settings, called_as('solve'))}")


def run_servers(spec: LaunchSpec, folder: Path) -> None:
    """Starts the servers, prints how to use them, and waits for a signal. Raises: ServerExited."""
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The handler only sets a flag, so that no server is ever half started; a second signal changes nothing.
        signal.signal(number, lambda number, _: signals.append(number))
    print_line(f"starting {', '.join(spec.commands)}; logs in {folder}")
    group = ServerGroup(
        spec.commands,
        folder,
        timeout_s=spec.common.startup_timeout_s,
        restarts=spec.common.restarts,
        should_stop=lambda: bool(signals),
        report=print_line,
    )
    try:
        with group as servers:
            if servers.start_all():
                command = format_solve_command(spec.solve_settings, called_as("solve"))
                print_line(f"to solve:\n{command}\nCtrl-C stops the servers")
                servers.wait_until_stopped()
                print_line("stopping")
                servers.drain_all(spec.common.drain_timeout_s, should_hurry=lambda: len(signals) > 1)
            else:
                print_line("stopping")
    finally:
        print_line("stopped")


def print_line(text: str) -> None:
    print(text, flush=True)


def run_program() -> None:
    """Runs `main`; settings that Hydra cannot read end without a traceback."""
    with handle_termination("serve_models"):
        main()
