"""Says how the running command was called, for help texts and for what a run notes about itself."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

SCRIPTS = "scripts"


def called_as(name: str) -> str:
    """Returns what calls the command `name` of today's process: a script of a checkout, or the command `reason`.

    >>> called_as("bench replay")
    'reason bench replay'
    """
    folders = Path(sys.argv[0]).absolute().parts[-3:-1]
    if Path(sys.argv[0]).suffix == ".py" and SCRIPTS in folders:
        return f"python scripts/{name.replace('-', '_').replace(' ', '/')}.py"
    return f"reason {name}"


def join_command(name: str) -> str:
    """Returns the running command with its arguments, quoted for a shell."""
    return shlex.join([*called_as(name).split(), *sys.argv[1:]])


def as_called(text: str) -> str:
    """Returns a help text whose lines `reason NAME ...` begin as the user calls that command."""
    return re.sub(r"^reason ((?:bench )?[a-z_-]+)", lambda match: called_as(match[1]), text, flags=re.MULTILINE)


def make_parser(name: str, help_text: str | None) -> ArgumentParser:
    """Returns a parser for the arguments of a command; its help is the docstring of the command's module."""
    return ArgumentParser(
        prog=called_as(name), description=as_called(help_text or ""), formatter_class=RawDescriptionHelpFormatter
    )
