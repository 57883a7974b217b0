"""Solves with every combination of settings; with --budget it says first what that takes.

reason sweep search=beam_search,ets search.n=4,16                 every combination, one run after the other
reason sweep --budget search=beam_search,ets search.n=4,16        first an estimate, from two problems of each run
reason sweep --budget 2h search.n=4,16,64                         starts only if the estimate is at most two hours
reason sweep --budget 5000000 search.n=4,16,64                    or at most five million tokens
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import reason
from reason.commands import solve
from reason.commands.names import WRONG_ARGUMENTS
from reason.config.errors import ConfigError
from reason.runs.sweep_estimate import SweepBudget, SweepEstimate, estimate_sweep, parse_budget

OPTION = "--budget"
TRIED = 2
"""Problems that the estimate solves for each run."""

PROGRAM = "import sys; from reason.commands.main import run_program; sys.exit(run_program())"


def run_program() -> int | None:
    """Runs the sweep; with --budget after its estimate, and not at all where that is above the budget."""
    try:
        budget, arguments = take_budget(sys.argv[1:])
    except ConfigError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return WRONG_ARGUMENTS
    if budget is not None:
        try:
            estimate = try_sweep(arguments)
        except ConfigError as error:
            print(f"sweep: {error}", file=sys.stderr)
            return WRONG_ARGUMENTS
        except subprocess.CalledProcessError as error:
            print("sweep: the trial for the estimate failed, and the sweep was not started", file=sys.stderr)
            return int(error.returncode)
        print(estimate.describe(), flush=True)
        if refusal := estimate.refusal(budget):
            print(f"sweep: {refusal}; nothing was started", file=sys.stderr)
            return WRONG_ARGUMENTS
    sys.argv[1:] = arguments
    solve.run_program()
    return None


def take_budget(arguments: Sequence[str]) -> tuple[SweepBudget | None, list[str]]:
    """Returns the budget, None where none was asked for, and the other arguments.

    >>> take_budget(["--budget", "2h", "search.n=4,8"])
    (SweepBudget(tokens=None, seconds=7200.0), ['search.n=4,8'])

    Raises: ConfigError.
    """
    rest = list(arguments)
    for place, argument in enumerate(rest):
        name, given, value = argument.partition("=")
        if name != OPTION:
            continue
        following = rest[place + 1] if place + 1 < len(rest) else ""
        is_apart = not given and re.fullmatch(r"[^-=~+][^=]*", following) is not None
        text = following if is_apart else value
        return parse_budget(text), [*rest[:place], *rest[place + 1 + is_apart :]]
    return None, rest


def try_sweep(arguments: Sequence[str]) -> SweepEstimate:
    """Runs the sweep on a few problems, in a folder that is removed, and estimates the whole of it.

    Raises: ConfigError; CalledProcessError where the trial fails.
    """
    limit, settings = take_limit(arguments)
    tried = TRIED if limit is None else min(TRIED, limit)
    print(f"estimating from {tried} problem{'s' if tried > 1 else ''} of each run ...", file=sys.stderr, flush=True)
    home = str(Path(reason.__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
    with TemporaryDirectory(prefix="sweep-") as folder:
        command = [sys.executable, "-c", PROGRAM, "sweep", *settings, f"limit={tried}", f"hydra.sweep.dir={folder}"]
        started = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": paths})
        return estimate_sweep(Path(folder), time.monotonic() - started, limit)


def take_limit(arguments: Sequence[str]) -> tuple[int | None, list[str]]:
    """Returns the setting `limit`, and the arguments for a trial: without limit, folder and loggers.

    Raises: ConfigError for a limit that is no number: a sweep over limits has no one size.
    """
    limit: int | None = None
    settings = []
    for argument in arguments:
        key, _, value = argument.lstrip("+").partition("=")
        if key == "limit" and value != "null":
            if not value.isdecimal() or not int(value):
                raise ConfigError(f"{OPTION} needs one limit, a number from 1 on, got limit={value}")
            limit = int(value)
        if key not in ("limit", "hydra.sweep.dir", "hydra.sweep.subdir", "log_to", "--multirun", "-m"):
            settings.append(argument)
    return limit, settings
