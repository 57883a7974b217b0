"""Start the SGLang servers of a run on this machine, say how to use them, and stop them all with Ctrl-C.

python scripts/serve_models.py                                                     the bundled model
python scripts/serve_models.py serve_models.servers=[target,prm]                   and the reward model
python scripts/serve_models.py target.gpus=[0,1] target.workers=2                  one on each GPU
python scripts/serve_models.py target.model=qwen2.5-math-7b target.gpus=[0,1] target.tp=2   divided among two
python scripts/serve_models.py serve_models.python=.venv-sglang serve_models.packages=tests/sglang/shim   on a CPU

Settings and logs: conf/serve_models.yaml. Prints the line for scripts/solve.py once all of them answer. If one ends, so
do the others, with exit code 1 and the end of its log.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from reason.config import compose
from reason.engines.launcher import solve_command as line
from reason.engines.launcher import spec as plan
from reason.engines.launcher.processes import Processes, ServerEnded
from reason.runs.command import FAILED, ended_well, in_one_sentence


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="serve_models")
def main(cfg: DictConfig) -> None:
    """Serve until told to stop; a wrong setting is one sentence."""
    try:
        with in_one_sentence("serve_models"):
            serve(plan.check(compose.resolved(cfg)), Path(HydraConfig.get().runtime.output_dir))
    except ServerEnded as error:
        print(f"serve_models: {error}", file=sys.stderr)
        sys.exit(FAILED)


def serve(planned: plan.Plan, folder: Path) -> None:
    """Start, wait, say how to use them, and wait for a signal. Raises: ServerEnded."""
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only taken note of, so that no server is ever half started; a second one while they stop changes nothing.
        signal.signal(number, lambda number, _: signals.append(number))
    tell(f"starting {', '.join(planned.launches)}; logs in {folder}")
    try:
        with Processes(planned.launches, folder, told=lambda: bool(signals), say=tell) as processes:
            if processes.start(planned.patience_s):
                tell(f"to solve:\n{line.command(planned.settings)}\nCtrl-C stops the servers")
                processes.watch()
            tell("stopping")
    finally:
        tell("stopped")


def tell(text: str) -> None:
    print(text, flush=True)


def program() -> None:
    """Run `main`; settings that Hydra cannot read end without a traceback."""
    with ended_well("serve_models"):
        main()


if __name__ == "__main__":
    program()
