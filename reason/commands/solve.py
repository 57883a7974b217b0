"""Solves a question or the problems of a task, shows progress, and writes every result and tree to disk.

reason solve                                   a small bundled set with the bundled models
reason solve question="What is 3 + 4?"         one question
reason solve +task=aime search.n=64            a data set
reason solve resume=outputs/DATE/TIME          the remaining problems of an interrupted run
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from reason import ConfigError
from reason.commands.typed import called_as
from reason.config import compose
from reason.config.compose import Settings
from reason.config.front import AUTO
from reason.engines.spec import require_from_environment
from reason.models.loading import collect_seldom
from reason.runs import resume
from reason.runs.command import (
    FAILED,
    INTERRUPTED,
    ClosedOutputError,
    StdoutConsole,
    exit_with,
    freeze_imports,
    handle_termination,
    printing,
    report_config_errors,
)
from reason.runs.json_files import write_json
from reason.runs.loggers.base import open_loggers, require_loggers
from reason.runs.papers.judgement import RunSettings, judge_run
from reason.runs.papers.spec import read_paper
from reason.runs.present import format_heading, print_solution, print_summary
from reason.runs.progress import ThroughputMeter, track
from reason.runs.run import SUMMARY, TaskRun, check_saved_rows
from reason.runs.summary import summarise_results
from reason.settings.validate import validate_settings
from reason.tasks.selection import select_task

log = logging.getLogger("reason.solve")


@hydra.main(version_base="1.3", config_path="pkg://reason.conf", config_name="solve")
def main(cfg: DictConfig) -> None:
    """Runs once, or one job of a sweep."""
    with report_config_errors("solve"):
        solve_task(cfg)


def solve_task(cfg: DictConfig) -> None:
    """Validates the settings and what is in the folder, loads the models, solves and reports.

    Raises: ConfigError; OutputError where results cannot be saved; ClosedOutputError.
    """
    console = StdoutConsole(highlight=False)
    config, choices, about = settings_to_run(cfg)
    with resume.settings_of_run(Path(config["resume"])) if about is not None else nullcontext():
        spec = validate_settings(config, choices)
        task, stands_in_for = select_task(spec.config, choices, spec.scorer)
    require_loggers(config.get("log_to", []))
    metadata = spec.run_metadata(task, stands_in_for)
    folder = Path(config["resume"] or HydraConfig.get().runtime.output_dir)
    with printing():
        console.print(format_heading(metadata, len(task)), soft_wrap=True, markup=False)
        if "auto" in config:
            console.print(config["auto"]["why"], soft_wrap=True, markup=False)

    if about is not None:
        metadata |= {"config": about.get("config")}  # the hash under the names of settings that the run began with
    else:
        resume.require_new_folder(folder)
    with compose.as_config_error():
        check_saved_rows(folder, list(task)[: config["limit"]], metadata)
    if about is None:
        command = f"{called_as('solve')} {shlex.join(compose.list_overrides())}".strip()
        resume.save_settings(folder, config=config, choices=choices, about=metadata, command=command)
    loggers = open_loggers(config.get("log_to", []), folder, config, metadata)
    # a question is asked for its answer; a task runs for long, and rounds that are timed first are worth it
    waits = config["question"] is None
    with closing(task), loggers as trackers, spec.load_solver(task, allocates=True, waits_for_drafts=waits) as solver:
        freeze_imports()
        collect_seldom()
        run = TaskRun(solver, task, folder, run_metadata=metadata, limit=config["limit"], allocation=spec.allocation)
        meter = ThroughputMeter(solver.engine)
        before = list(run.results.values())
        stopped, closed = "done", None
        try:
            # closed before the run is finished: what is solved by then is saved
            with printing(), closing(run.solve_missing()) as outcomes:
                for result in track(
                    outcomes,
                    total=run.total_work,
                    before=before,
                    meter=meter,
                    console=console,
                    measure_work=run.measure_work,
                ):
                    results = list(run.results.values())
                    trackers.log_problem(result, results, step=sum(map(run.measure_work, results)))
        except KeyboardInterrupt:
            stopped = "interrupted"
        except ClosedOutputError as error:  # as after Ctrl-C: the reader has gone
            stopped, closed = "interrupted", error
        results = run.finish_run()
        summary = {
            **metadata,
            "stopped": stopped,
            "total": len(run.problems),
            "task_problems": len(task),
            "concurrency": config["concurrency"],
            "resumed": run.num_resumed,
            **summarise_results(results),
            "seconds": round(meter.elapsed_seconds, 3),
            "decoder": solver.engine.stats.decoder,
            "engine_totals": meter.read_totals(),
            "folder": str(folder),
            "page": str(run.start_page),
        }
        paper = read_paper(config.get("paper"))
        if paper is not None:
            settings = RunSettings(config, choices)
            summary["paper"] = judge_run(paper, settings, results, is_whole=stopped == "done")
        trackers.log_summary(summary)
    write_json(folder / SUMMARY, summary)
    run.write_index(results, summary)
    with printing():
        if config["question"] is not None and results:
            print_solution(results[0], console)
        print_summary(summary, console)
        if stopped == "interrupted":
            left = f"to finish this run: {called_as('solve')} {shlex.quote(f'resume={folder}')}"
            console.print(left, style="bold", markup=False, soft_wrap=True)
        print(json.dumps(summary), flush=True)
    if closed is not None:
        raise closed
    if stopped == "interrupted":
        sys.exit(INTERRUPTED)
    if results and all(result.error is not None for result in results):
        exit_with(FAILED)


def settings_to_run(cfg: DictConfig) -> tuple[Settings, dict[str, str], dict[str, Any] | None]:
    """Returns the settings, the option chosen of each group, and None for a new run.

    With `resume` they are those of the run to finish, and the third is its metadata.

    Raises: ConfigError where settings beside `resume` differ from the saved ones.
    """
    config, choices = compose.resolve_settings(cfg), dict(HydraConfig.get().runtime.choices)
    if choices.get("search") == AUTO or compose.drafts_by_default(choices, compose.list_overrides()):
        config, choices = compose.compose_settings(compose.list_overrides())
    if config["resume"] is None:
        return config, choices, None
    old, old_choices, about = resume.load_settings(Path(config["resume"]))
    given = [override.lstrip("+~").partition("=")[0] for override in compose.list_overrides()]
    if set(given) - set(resume.NON_SEMANTIC):
        resume.require_same_settings(old, config, resume.find_keys(given, old, config))
    if missing := sorted(config.keys() - old.keys()):
        log.warning("%s are settings of this release; the run to resume gets their defaults", ", ".join(missing))
    changed = {key: config[key] for key in given if key in resume.NON_SEMANTIC}
    # Plugins are imported because this command names them, never because a folder does.
    return config | old | {"plugins": config["plugins"]} | changed, old_choices, about


def refuse_written_out_keys(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments; refuses API keys among them, because Hydra saves arguments before anything is checked.

    >>> refuse_written_out_keys(["engine.api_key=${oc.env:KEY}"])
    ['engine.api_key=${oc.env:KEY}']

    Raises: ConfigError.
    """
    for argument in arguments:
        key, _, value = argument.lstrip("+").partition("=")
        if key in (".".join(secret) for secret in compose.SECRETS) and value.strip("'\"") not in ("", "null"):
            require_from_environment(key, value.strip("'\""))
    return list(arguments)


def write_to_resumed_folder(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments; with `resume`, Hydra writes to that run's folder and keeps the files there."""
    at = next((i for i, argument in enumerate(arguments) if argument.startswith("resume=")), None)
    folder = "" if at is None else _unquote(arguments[at].partition("=")[2])
    if at is None or folder in ("", "null"):
        return list(arguments)
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError("resume finishes one run; leave out -m")
    if "${" in folder:
        raise ConfigError(f"{folder}: Hydra cannot write to a folder with ${{ in its name; rename it")
    resume.load_settings(Path(folder))
    resumed = [f"resume={_quote(folder)}", f"hydra.run.dir={_quote(folder)}", "hydra.output_subdir=null"]
    return [*arguments[:at], *resumed, *arguments[at + 1 :]]


def quote_question(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with the question quoted, because `=`, commas, brackets and `${` are syntax for Hydra.

    >>> quote_question(["question=Find x, if 2x = 6.", "search.n=4"])
    ["question='Find x, if 2x = 6.'", 'search.n=4']
    """
    return [_quote_question(argument) if argument.startswith("question=") else argument for argument in arguments]


def _quote_question(argument: str) -> str:
    key, _, text = argument.partition("=")
    is_reference = re.fullmatch(r"\$\{oc\.[^{}]*\}", text)  # such as ${oc.env:NAME}
    return argument if text in ("", "null") or text != _unquote(text) or is_reference else f"{key}={_quote(text)}"


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _quote(text: str) -> str:
    """Quotes any text for Hydra."""
    plain = re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + "\\${", text)  # no reference to a setting
    # Hydra reads a backslash before a quote as an escape, and doubled ones at the end of the text.
    escaped = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), plain)
    return f"'{escaped}'"


def run_program() -> None:
    """Runs `main`; wrong settings and interrupts end without a traceback."""
    with handle_termination("solve"):
        sys.argv[1:] = write_to_resumed_folder(quote_question(refuse_written_out_keys(sys.argv[1:])))
        main()
