"""The command `reason`: what it lists, what it refuses, and that it does what the scripts do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from reason.commands.names import BENCHES, COMMANDS, PACKAGE, list_benches
from tests.support.paths import SCRIPTS

PROGRAM = (
    "import sys; sys.argv[0] = 'bin/reason'; from reason.commands.main import run_program; sys.exit(run_program())"
)
"""What the installed command does, whether or not the tests' environment has it."""


def run(
    *arguments: str, folder: Path | None = None, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder, env=os.environ | (variables or {}), capture_output=True, text=True, check=False,
    )  # fmt: skip


def complete(line: str) -> list[str]:
    """What a shell is offered for this line."""
    done = run("-sc", "query=bash", variables={"COMP_LINE": line})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_command_alone_and_with_help_lists_the_subcommands(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", [[], ["--version"], ["solv"], ["bench"], ["bench", "replai"]])
def test_what_needs_no_subcommand_imports_no_package(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv[1:] = {arguments}; from reason.commands.main import run_program; run_program()\n"
        "import importlib.metadata as m\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'hydra', 'torch', 'numpy', 'omegaconf', 'rich'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_version_is_that_of_the_package() -> None:
    import reason

    assert run("--version").stdout.startswith(f"reason {reason.__version__}, Python 3.")


@pytest.mark.parametrize("arguments", [["--version"], ["solv"], ["solve", "search=beam"]])
def test_package_runs_as_the_command_does(arguments: list[str]) -> None:
    command, package = (
        run(*arguments),
        subprocess.run([sys.executable, "-m", "reason", *arguments], capture_output=True, text=True, check=False),
    )
    assert (package.returncode, package.stdout, package.stderr) == (command.returncode, command.stdout, command.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solv"], "reason: there is no command solv (did you mean solve?); choose one of: solve, sweep, "),
        (["question=3"], "reason: there is no command question=3; choose one of: "),
        (["bench", "replai"], "reason: there is no benchmark replai (did you mean replay?); choose one of: "),
    ],
)
def test_unknown_names_are_refused_with_the_closest(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


def test_every_command_and_benchmark_has_something_to_run() -> None:
    names = [command.module for command in COMMANDS.values()]
    for module in [*(f"{PACKAGE}.{name}" for name in names), *(f"{BENCHES}.{name}" for name in list_benches())]:
        assert callable(import_module(module).run_program)


def test_every_script_calls_its_command() -> None:
    """A sweep is `scripts/solve.py -m`; only its estimate is the command's alone."""
    scripts = {file.stem: file for file in [*SCRIPTS.glob("*.py"), *SCRIPTS.glob("bench/*.py")]}
    modules = {command.module for command in COMMANDS.values()} - {"benches", "sweep"} | set(list_benches())
    with_settings = {command.module: name for name, command in COMMANDS.items() if command.config is not None}
    assert modules <= scripts.keys()
    for name in modules:
        package = BENCHES if scripts[name].parent.name == "bench" else PACKAGE
        calls = f"from {package}.{name} import run_program"
        if name in with_settings:
            calls = f'sys.exit(run_command("{with_settings[name]}", sys.argv[1:]))'
        assert calls in scripts[name].read_text()


@pytest.mark.parametrize("name", list_benches())
def test_script_of_a_benchmark_has_its_exit_status(name: str) -> None:
    if import_module(f"{BENCHES}.{name}").run_program.__annotations__["return"] == "int":
        assert "sys.exit(run_program())" in (SCRIPTS / "bench" / f"{name}.py").read_text()


def test_metadata_name_the_command_and_a_plug_in_of_sglang_below_our_prefix() -> None:
    (command,) = [entry for entry in entry_points(group="console_scripts") if entry.value.startswith("reason.")]
    assert command.name == "reason"
    assert callable(command.load())
    (plug_in,) = [entry for entry in entry_points(group="sglang.srt.plugins") if entry.name == "reason"]
    assert plug_in.value.startswith("reason.")
    assert callable(plug_in.load())


@pytest.mark.parametrize("arguments", [["--cfg", "job"], ["search=beam"], ["search.n=0"]])
def test_solve_is_the_script(arguments: list[str], tmp_path: Path) -> None:
    arguments = [*arguments, "hydra.run.dir=run"]
    command = run("solve", *arguments, folder=tmp_path)
    script = subprocess.run(
        [sys.executable, str(SCRIPTS / "solve.py"), *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (command.returncode, command.stdout, command.stderr) == (script.returncode, script.stdout, script.stderr)


def test_settings_are_shown_without_a_run(tmp_path: Path) -> None:
    """Hydra's own options: all settings, or those of one group, as yaml, and which file each group comes from."""
    job = run("solve", "search=rebase", "search.n=7", "--cfg", "job", folder=tmp_path)
    part = run("solve", "search=rebase", "search.n=7", "--cfg", "job", "--package", "search", folder=tmp_path)
    assert (job.returncode, part.returncode) == (0, 0)
    search, whole = (OmegaConf.to_container(OmegaConf.create(done.stdout), resolve=False) for done in (part, job))
    assert isinstance(search, dict)
    assert isinstance(whole, dict)
    assert (search["n"], search["_target_"]) == (7, "search.strategies.rebase.Rebase")
    assert whole["search"] == search
    defaults = run("solve", "search=rebase", "--info", "defaults", folder=tmp_path).stdout
    assert re.search(r"^\| search/rebase +\| search +\|", defaults, re.MULTILINE)
    assert not list(tmp_path.iterdir())


def test_help_names_the_command_as_it_was_called(tmp_path: Path) -> None:
    command = run("report", "--help").stdout
    assert command.startswith("usage: reason report ")
    assert "\nreason report multirun/DATE/TIME" in command
    script = [sys.executable, str(SCRIPTS / "report.py"), "--help"]
    printed = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("usage: python scripts/report.py ")
    assert "\npython scripts/report.py multirun/DATE/TIME" in printed


def test_sweep_says_first_how_many_runs_there_are(tmp_path: Path) -> None:
    """The jobs are refused, so nothing loads."""
    done = run("sweep", "search=best_of_n,rebase", "search.n=0,-1,-2", "hydra.sweep.dir=all", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout.splitlines()[0] == "6 runs, in all"
    one = run("sweep", "search.n=0", "hydra.sweep.dir=one", folder=tmp_path)
    assert one.stdout.splitlines()[0] == "1 run, in one"


def test_shell_completes_commands_benchmarks_and_settings() -> None:
    assert complete("reason ") == list(COMMANDS)
    assert complete("reason se") == ["serve", "serve-models"]
    assert complete("reason bench repl") == ["replay"]
    assert complete("reason solve search=be") == ["search=beam_search", "search=best_of_n"]
    assert complete("reason sweep search.sampling.temp") == ["search.sampling.temperature="]
    assert complete("/usr/bin/reason serve serve.po") == ["serve.port="]
    assert complete("reason report ") == []


@pytest.mark.parametrize("before", [[], ["solve"]])
def test_completion_is_installed_for_the_whole_command(before: list[str]) -> None:
    assert run(*before, "-sc", "install=bash").stdout.rstrip().endswith(" reason")
