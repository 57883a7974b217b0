"""Solve a question or the problems of a task, show it live, and leave every result and tree on disk.

python scripts/solve.py                                   a small bundled set with the bundled models
python scripts/solve.py question="What is 3 + 4?"         one question
python scripts/solve.py +task=aime search.n=64            a data set
python scripts/solve.py resume=outputs/DATE/TIME          the rest of a run that was stopped
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from reason import ConfigError, build
from reason.config import compose
from reason.engines import spec as engines
from reason.runs import resume
from reason.runs.command import FAILED, INTERRUPTED, ended_well, in_one_sentence, leave, quiet
from reason.runs.present import heading, show_solution, show_table
from reason.runs.progress import Gauge, watched
from reason.runs.result_file import write_json
from reason.runs.run import Run
from reason.runs.summary import summary_of


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="solve")
def main(cfg: DictConfig) -> None:
    """One run, or one job of a sweep."""
    with in_one_sentence("solve"):
        solve(cfg)


def solve(cfg: DictConfig) -> None:
    """Check the settings, load the models, solve, report."""
    console = Console(highlight=False)
    config, choices = settings(cfg)
    plan = build.check(config, choices)
    task, stands_in_for = build.task_of(plan, choices)
    stamp = plan.stamp(task, stands_in_for)
    folder = Path(config["resume"] or HydraConfig.get().runtime.output_dir)
    console.print(heading(stamp, len(task)), soft_wrap=True, markup=False)

    if not config["resume"]:
        resume.save(folder, config=config, choices=choices, about=stamp)
    quiet()
    with closing(task), plan.open(task) as solver:
        run = Run(solver, task, folder, stamp=stamp, limit=config["limit"])
        gauge = Gauge(solver.engine)
        before = list(run.rows.values())
        stopped = "done"
        try:
            for _ in watched(run.go(), total=len(run.problems), before=before, gauge=gauge, console=console):
                pass
        except KeyboardInterrupt:
            stopped = "interrupted"
        rows = run.finish()
        summary = {
            **stamp,
            "stopped": stopped,
            "total": len(run.problems),
            "resumed": run.resumed,
            **summary_of(rows),
            "seconds": round(gauge.seconds, 3),
            "engine_totals": gauge.read(),
            "folder": str(folder),
            "page": str(run.page),
        }
    write_json(folder / "summary.json", summary)
    if config["question"] is not None and rows:
        show_solution(rows[0], console)
    show_table(summary, console)
    print(json.dumps(summary), flush=True)
    if stopped == "interrupted":
        sys.exit(INTERRUPTED)
    if rows and all(row["error"] for row in rows):
        leave(FAILED)


def settings(cfg: DictConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings to run with: those given, or with `resume` those of the run to finish.

    Raises: ConfigError where settings are given beside `resume` that differ from the saved ones.
    """
    config, choices = compose.resolved(cfg), dict(HydraConfig.get().runtime.choices)
    if config["resume"] is None:
        return config, choices
    old, old_choices = resume.saved(Path(config["resume"]))
    given = [o.lstrip("+~").partition("=")[0] for o in HydraConfig.get().overrides.task]
    if set(given) - set(resume.HARMLESS):
        resume.require_same(old, config)
    now = {key: config[key] for key in given if key in resume.HARMLESS}
    # code is run because it was asked for now, never because a folder says so
    return old | {"plugins": config["plugins"]} | now, old_choices


def without_keys(arguments: Sequence[str]) -> list[str]:
    """The arguments, if no API key is among them: Hydra writes them down before anything is checked.

    >>> without_keys(["engine.api_key=${oc.env:KEY}"])
    ['engine.api_key=${oc.env:KEY}']

    Raises: ConfigError.
    """
    for argument in arguments:
        key, _, value = argument.lstrip("+").partition("=")
        if key in (".".join(secret) for secret in compose.SECRETS) and value.strip("'\"") not in ("", "null"):
            engines.require_from_environment(key, value.strip("'\""))
    return list(arguments)


def into_the_same_folder(arguments: Sequence[str]) -> list[str]:
    """The arguments, for a resumed run with Hydra told to write where it wrote and to leave its files alone."""
    at = next((i for i, argument in enumerate(arguments) if argument.startswith("resume=")), None)
    folder = "" if at is None else arguments[at].partition("=")[2].strip("'\"")
    if at is None or folder in ("", "null"):
        return list(arguments)
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError("resume finishes one run; leave out -m")
    resume.saved(Path(folder))
    quoted = folder.replace("'", "\\'")
    return [*arguments[: at + 1], f"hydra.run.dir='{quoted}'", "hydra.output_subdir=null", *arguments[at + 1 :]]


def questions_as_text(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a question quoted for Hydra, to whom `=`, commas and brackets mean something.

    >>> questions_as_text(["question=Find x, if 2x = 6.", "search.n=4"])
    ["question='Find x, if 2x = 6.'", 'search.n=4']
    """
    return [_quoted(argument) if argument.startswith("question=") else argument for argument in arguments]


def _quoted(argument: str) -> str:
    key, _, text = argument.partition("=")
    already = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if already or text in ("", "null"):
        return argument
    # Hydra reads a backslash before a quote as an escape, and doubled ones at the end of the text.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"{key}='{escaped}'"


def program() -> None:
    """Run `main`; wrong settings and interrupts end without a traceback."""
    with ended_well("solve"):
        sys.argv[1:] = into_the_same_folder(questions_as_text(without_keys(sys.argv[1:])))
        main()


if __name__ == "__main__":
    program()
