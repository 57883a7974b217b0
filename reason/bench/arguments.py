"""Command-line arguments that several benchmark scripts share."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

from rich.console import Console

from decoding.core import MAX_TEMPERATURE
from decoding.validation import MAX_VALUE, is_count, is_number, require_count
from reason.config.errors import ConfigError
from reason.models.loading import collect_seldom
from reason.runs.output_folder import OutputError


def positive_int(text: str) -> int:
    """An int of at least 1. Raises: ArgumentTypeError."""
    number = int(text)
    try:
        require_count("it", number, at_least=1)
    except ValueError as error:
        raise ArgumentTypeError(str(error).removeprefix("it ")) from None
    return number


def positive_ints(text: str) -> tuple[int, ...]:
    """`1,4,16` as ints of at least 1. Raises: ArgumentTypeError."""
    numbers = tuple(int(part) for part in text.split(","))
    if not all(is_count(number, at_least=1, at_most=MAX_VALUE) for number in numbers):
        raise ArgumentTypeError(f"must be ints from 1 to {MAX_VALUE}, got {text}")
    return numbers


def count_list(text: str) -> tuple[int, ...]:
    """`0,4,16` as ints of at least 0. Raises: ArgumentTypeError."""
    numbers = tuple(int(part) for part in text.split(","))
    if not all(is_count(number, at_least=0, at_most=MAX_VALUE) for number in numbers):
        raise ArgumentTypeError(f"must be ints from 0 to {MAX_VALUE}, got {text}")
    return numbers


def require_names(flag: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raises: SystemExit that names the flag and the valid names, if one of these is not known."""
    if unknown := sorted(set(names) - set(known)):
        raise SystemExit(f"{flag} must be of {', '.join(known)}, got {', '.join(unknown)}")


def temperature(text: str) -> float:
    """A temperature. Raises: ArgumentTypeError."""
    number = float(text)
    if not is_number(number, low=0, high=MAX_TEMPERATURE):
        raise ArgumentTypeError(f"must be a number from 0 to {MAX_TEMPERATURE}, got {text}")
    return number


def temperature_list(text: str) -> tuple[float, ...]:
    """`1,0.6,0` as temperatures. Raises: ArgumentTypeError."""
    numbers = tuple(float(part) for part in text.split(","))
    if not all(is_number(number, low=0, high=MAX_TEMPERATURE) for number in numbers):
        raise ArgumentTypeError(f"must be numbers from 0 to {MAX_TEMPERATURE}, got {text}")
    return numbers


def name_list(text: str) -> tuple[str, ...]:
    """`stand,suffix` as names."""
    return tuple(part.strip() for part in text.split(","))


def add_torch_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--threads`, `--device` and `--dtype`. *Mutates* the parser."""
    parser.add_argument("--threads", type=positive_int, help="torch threads; default: chosen by torch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")


def report_path(text: str) -> Path:
    """The file of a report, whose folder is made at once: a bench may run for hours before it writes.

    Raises: ArgumentTypeError for a folder.
    """
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder: name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentTypeError(f"{text}: its folder cannot be made ({error.strerror})") from None
    return path


def add_report_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--out`. *Mutates* the parser."""
    parser.add_argument("--out", type=report_path, help="write the report to this file")


class _RenamedFlag(argparse.Action):
    """Stores the value of an old flag where the flag that replaces it would, and prints one warning."""

    replacement: argparse.Action

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        new = self.replacement.option_strings[0]
        print(f"warning: {option_string} is now {new}; the next release drops the old name", file=sys.stderr)
        self.replacement(parser, namespace, values, new)


def accept_old_flag(parser: argparse.ArgumentParser, old: str, replacement: argparse.Action) -> None:
    """Makes `old`, a flag of the last release, a hidden alias of `replacement` that prints a warning when it is used.

    *Mutates* the parser. A test of `tests/reason/bench` lists the aliases; the next release removes them.
    """
    alias = parser.add_argument(
        old,
        action=_RenamedFlag,
        dest=replacement.dest,
        default=argparse.SUPPRESS,  # else it would overwrite the default of the replacement
        nargs=replacement.nargs,
        choices=replacement.choices,
        help=argparse.SUPPRESS,
    )
    assert isinstance(alias, _RenamedFlag)
    alias.type = replacement.type
    alias.replacement = replacement


def describe_length(**factors: int) -> str:
    """Formats how much a command does, which it prints before it begins; factors of 1 are left out.

    >>> describe_length(searches=8, widths=3, seeds=1, problems=200), describe_length(pairs=20)
    ('8 searches x 3 widths x 200 problems = 4,800', '20 pairs')
    """
    parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in factors.items() if count != 1]
    total = f" = {prod(factors.values()):,}" if len(parts) > 1 else ""
    return (" x ".join(parts) or "1 run") + total


def limit_threads(count: int | None) -> None:
    """Limits torch to `count` threads; `None` leaves torch its default. Must be called before torch is imported."""
    if count is not None:
        assert "torch" not in sys.modules, "too late: torch has read how many threads it may use"
        os.environ["OMP_NUM_THREADS"] = str(count)


def run_benchmark(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace, Console], Mapping[str, object]]
) -> None:
    """Parses the command line, measures, and prints the result as the one JSON object on stdout's last line.

    Where Ctrl-C or wrong input ends it early, what it has printed is kept beside `--out`: hours may be in it.

    Raises: SystemExit with 2 after wrong input, with 130 after Ctrl-C.
    """
    args = parser.parse_args()
    limit_threads(getattr(args, "threads", None))
    collect_seldom()  # as the commands that are measured
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    console = Console(stderr=not sys.stdout.isatty(), width=120, record=True)
    try:
        result = measure(args, console)
    except (ConfigError, ValueError, OutputError) as error:
        message, status = str(error), 2
    except KeyboardInterrupt:
        message, status = "stopped", 130
    else:
        print(json.dumps(result))
        return
    where = _keep_lines(getattr(args, "out", None), console.export_text())
    Console(stderr=True).print(message + where, style="red", markup=False, soft_wrap=True)
    sys.exit(status)


def _keep_lines(out: Path | None, text: str) -> str:
    """Writes what was printed beside the report, which may be of an earlier run; returns where, for a message."""
    if out is None or not text.strip():
        return ""
    file = out.with_suffix(".stopped.txt")
    file.write_text(text, encoding="utf-8")
    return f" (what was printed is in {file})"


def run_comparison(
    parser: argparse.ArgumentParser, compare: Callable[[argparse.Namespace, Console], str], *, kept_in: str = "folder"
) -> int:
    """Parses the command line, compares, and writes the report to stdout and to `--out`; returns the exit status.

    The runs are in `--folder`, or what else `kept_in` names, where the same command continues after an interruption.
    """
    args = parser.parse_intermixed_args()
    logging.disable(logging.ERROR)  # transformers logs every setting that it ignores
    console = Console(stderr=True, highlight=False)
    try:
        text = compare(args, console)
    except (ConfigError, ValueError, OutputError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues (runs are in {getattr(args, kept_in)})", markup=False)
        return 130
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0
