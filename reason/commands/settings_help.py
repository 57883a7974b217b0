"""Prints the help of a command with settings: what it does, the groups of options, each setting and its meaning.

All of it is read from conf/: Hydra, whose own help lists classes, is not imported.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from reason.commands.typed import as_called, called_as
from reason.runs.closed_output import CLOSED_OUTPUT, discard_stdout

HELP = frozenset({"-h", "--help"})
ADDED = {"solve": ("task", "experiment"), "serve": (), "serve_models": ("recipe",), "train": ()}
"""Groups of which a command has no option until one is added with +GROUP=OPTION."""

_INDENT = 6
_DEFAULT = re.compile(r"  - (?P<group>[a-z][\w@]*): (?P<option>\S+)(?:\s+# (?P<about>.*))?")


@dataclass(frozen=True)
class OptionGroup:
    """A folder of conf/: its name, the option that a command has without a setting, and what it is for."""

    name: str
    default: str | None
    about: str


def show_help(name: str, config: str, help_text: str, arguments: Sequence[str]) -> int:
    """Prints the help of command `name`, whose settings are conf/{config}.yaml; returns its exit code."""
    width = shutil.get_terminal_size((100, 24)).columns
    try:
        print(format_help(name, config, help_text, find_config_folders(arguments), width), flush=True)
    except BrokenPipeError:  # as of `--help | head`
        discard_stdout()
        return CLOSED_OUTPUT
    return 0


def format_help(name: str, config: str, help_text: str, folders: Sequence[Traversable], width: int) -> str:
    """Returns the help; `folders` have the options of the groups."""
    source = files("reason.conf").joinpath(f"{config}.yaml").read_text(encoding="utf-8")
    lines = [f"usage: {called_as(name)} [GROUP=OPTION ...] [SETTING=VALUE ...]", "", as_called(help_text), ""]
    includes_solve = "\n  - solve\n" in source
    groups = read_groups(source)
    if groups:
        lines += ["GROUP=OPTION, the default in brackets:", ""]
        lines += [*(line for group in groups for line in _group_lines(group, folders, width)), ""]
    if added := ADDED[config]:
        lines += ["+GROUP=OPTION adds one:", ""]
        for group in added:
            lines += _group_lines(OptionGroup(group, None, ""), folders, width)
        lines.append("")
    lines += ["SETTING=VALUE, the defaults as yaml; below another it is typed with a dot, as a.b=VALUE:", ""]
    lines += [*read_settings(source), ""]
    command = called_as(name)
    if includes_solve:
        lines += [f"Groups and settings of {called_as('solve')} are settings here too: {called_as('solve')} --help", ""]
    if groups:
        group, option = groups[0].name, groups[0].default
        lines.append(f"{command} {group}={option} --cfg job --package {group}    the settings of an option")
    lines.append(f"{command} --cfg job    all settings, as they are with what was typed")
    lines.append(f"{command} --hydra-help    --multirun, --config-dir and what else Hydra takes")
    return "\n".join(lines)


def read_groups(source: str) -> list[OptionGroup]:
    """Returns the groups in the defaults list of a config, in its order.

    >>> read_groups("defaults:\\n  - search: beam # how solutions are explored\\n  - effort: null\\n  - _self_\\n")
    [OptionGroup(name='search', default='beam', about='how solutions are explored'), \
OptionGroup(name='effort', default=None, about='')]
    """
    groups = []
    for line in _split_defaults(source)[0]:
        match = _DEFAULT.fullmatch(line)
        if match is not None:
            option = match["option"].strip('"')
            groups.append(OptionGroup(match["group"], None if option == "null" else option, match["about"] or ""))
    return groups


def read_settings(source: str) -> list[str]:
    """Returns the lines of a config below its defaults list, without what they set of Hydra.

    >>> read_settings("defaults:\\n  - _self_\\n\\nn: 4 # samples\\n\\nhydra:\\n  run: {}\\nm: 1\\n")
    ['n: 4 # samples', '', 'm: 1']
    """
    settings, is_hydra = [], False
    for line in _split_defaults(source)[1]:
        if line[:1] not in (" ", ""):
            is_hydra = line.startswith("hydra:")
        if not is_hydra:
            settings.append(line)
    return "\n".join(settings).strip("\n").split("\n")


def list_group(name: str, folders: Sequence[Traversable]) -> list[str]:
    """Returns the options of a group in these folders; those with a leading underscore are only included by others."""
    entries = (entry for folder in folders for entry in _list_folder(folder.joinpath(name.partition("@")[0])))
    options = {entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml")}
    return sorted(option for option in options if not option.startswith("_"))


def find_config_folders(arguments: Sequence[str]) -> list[Traversable]:
    """Returns conf/ and the folder that --config-dir names."""
    folders: list[Traversable] = [files("reason.conf")]
    for place, argument in enumerate(arguments):
        key, given, value = argument.partition("=")
        if key in ("-cd", "--config-dir"):
            folders.append(Path(value if given else next(iter(arguments[place + 1 :]), "")))
    return folders


def _group_lines(group: OptionGroup, folders: Sequence[Traversable], width: int) -> list[str]:
    options = [f"[{name}]" if name == group.default else name for name in list_group(group.name, folders)]
    indent = " " * _INDENT
    wrapped = textwrap.wrap(
        ", ".join(options), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return [f"  {group.name:14} {group.about}".rstrip(), *wrapped]


def _split_defaults(source: str) -> tuple[list[str], list[str]]:
    """The lines of the defaults list, and those below it."""
    lines = source.splitlines()
    begin = next((i + 1 for i, line in enumerate(lines) if line == "defaults:"), 0)
    end = next((i for i in range(begin, len(lines)) if not lines[i].startswith("  ")), len(lines))
    return lines[begin:end], lines[end:]


def _list_folder(folder: Traversable) -> list[Traversable]:
    return list(folder.iterdir()) if folder.is_dir() else []
