"""The command `reason`: names its subcommands, or runs one with the rest of the command line.

Nothing heavy is imported before a subcommand is known.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import reason
from reason.commands.names import COMMANDS, PACKAGE, WRONG_ARGUMENTS, list_benches, read_help, unknown_name
from reason.commands.settings_help import HELP, show_help

FAILED = 1
FULL = ("numba", "llvmlite", "scipy")
"""Packages of the extra `full`, which benchmarks and training import where they need them."""

COMPLETION = ("-sc", "--shell-completion", "--shell_completion")
SHOW = ("-c", "--cfg", "-i", "--info", "-h", "--help", "--hydra-help", *COMPLETION)
"""Options of Hydra that show something in place of a run, and that it refuses beside --multirun."""


def overview() -> str:
    """Returns the help of the command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: reason COMMAND [SETTING=VALUE ...]",
            "",
            *lines,
            "",
            'reason solve question="x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."',
            "reason COMMAND --help      what a command takes",
            "reason --version           the installed version",
            'eval "$(reason -sc install=bash)"    completes commands and settings; also zsh and fish',
        ]
    )


def run_program() -> int | None:
    """Runs the subcommand that the command line names; returns its exit code, None for 0."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name == "--version":
        print(f"reason {reason.__version__}, Python {platform.python_version()}")
        return 0
    if name in COMPLETION:
        return complete(arguments)
    return run_command(name, arguments[1:])


def run_command(name: str, arguments: Sequence[str]) -> int | None:
    """Runs a subcommand with these arguments; returns its exit code, None for 0."""
    name = name.replace("_", "-")
    if name not in COMMANDS:
        print(f"reason: {unknown_name('command', name, list(COMMANDS))}", file=sys.stderr)
        return WRONG_ARGUMENTS
    command = COMMANDS[name]
    if command.config is not None:
        if HELP & set(arguments):
            return show_help(name, command.config, read_help(PACKAGE, command.module), arguments)
        if sys.stderr.isatty() and not any(argument.startswith("-") for argument in arguments):
            print("reading the settings ...", file=sys.stderr, flush=True)  # what does it takes half a second to import
    shows_only = any(argument.partition("=")[0] in SHOW for argument in arguments)
    return run_module(f"{PACKAGE}.{command.module}", [*(() if shows_only else command.arguments), *arguments])


def run_module(module: str, arguments: Sequence[str]) -> int | None:
    """Calls `run_program` of a module, which reads these arguments from `sys.argv` as a script would."""
    sys.argv[1:] = arguments
    try:
        code: int | None = import_module(module).run_program()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in FULL:
            raise
        print(f"reason: {package} is not installed: pip install 'reason-search[full]'", file=sys.stderr)
        return FAILED
    return code


def complete(arguments: Sequence[str]) -> int | None:
    """Answers a shell that completes a command line: subcommands here, settings by Hydra in the subcommand.

    A shell asks `reason -sc query=SHELL` with the line so far in COMP_LINE; `install=SHELL` prints what tells it to.
    """
    line = os.environ.get("COMP_LINE", "")
    if not any(argument.startswith("query=") for argument in arguments):
        return run_command("solve", arguments)  # what Hydra installs calls the whole command
    program, _, rest = line.lstrip().partition(" ")
    name, is_complete, settings = rest.lstrip().partition(" ")
    if not is_complete:
        print(" ".join(known for known in COMMANDS if known.startswith(name)))
        return 0
    if name == "bench":
        begun = settings.lstrip()
        print(" ".join(known for known in list_benches() if known.startswith(begun)))
        return 0
    if name not in COMMANDS or COMMANDS[name].config is None:  # Hydra completes settings
        return 0
    os.environ["COMP_LINE"] = f"{Path(program).name} {settings}"
    return run_command(name, arguments)
