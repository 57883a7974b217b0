"""Lists the benchmarks, or runs one: `reason bench NAME`."""

from __future__ import annotations

import sys
from importlib import import_module

from reason.commands.names import BENCHES, WRONG_ARGUMENTS, list_benches, read_help, unknown_name


def run_program() -> int | None:
    """Runs the benchmark that the first argument names; without one, lists them. Returns its exit code."""
    names, arguments = list_benches(), sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, names))
        print("\n".join(["usage: reason bench NAME [ARGUMENTS]", ""]))
        print("\n".join(f"  {name:{width}}  {describe(name)}" for name in names))
        return 0
    name = arguments[0].replace("-", "_")
    if name not in names:
        print(f"reason: {unknown_name('benchmark', arguments[0], names)}", file=sys.stderr)
        return WRONG_ARGUMENTS
    sys.argv[1:] = arguments[1:]
    code: int | None = import_module(f"{BENCHES}.{name}").run_program()
    return code


def describe(name: str) -> str:
    """Returns the first line of a benchmark's help."""
    return read_help(BENCHES, name).partition("\n")[0].rstrip(".")
