"""Lists the commands of `reason`, each with the module that it runs and a line of help."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.resources import files

from reason.config.errors import suggest_name

PACKAGE = "reason.commands"
BENCHES = f"{PACKAGE}.bench"
WRONG_ARGUMENTS = 2
"""Exit code where there is no such command, as argparse has it."""


@dataclass(frozen=True)
class Command:
    """A command: the module whose `run_program` it calls, and what it does.

    arguments   come before those of the user
    config      conf/{config}.yaml has its settings, which Hydra composes; None takes arguments of its own
    """

    module: str
    summary: str
    arguments: tuple[str, ...] = ()
    config: str | None = None


COMMANDS = {
    "solve": Command("solve", "solve a question or the problems of a task", config="solve"),
    "sweep": Command(
        "sweep",
        "solve with every combination of settings, as in search.n=4,16; --budget 2h estimates first",
        ("--multirun",),
        config="solve",
    ),
    "report": Command("report", "one page and one table of many runs; trees exported"),
    "serve": Command("serve", "an OpenAI-compatible server, with a search behind every answer", config="serve"),
    "serve-models": Command("serve_models", "start the SGLang servers of a run on this machine", config="serve_models"),
    "doctor": Command("doctor", "what is installed, which models and servers are there, what to repair"),
    "bench": Command("benches", "measure; without a name it lists the benchmarks"),
    "train": Command("train", "train the bundled models from scratch", config="train"),
    "collect-steps": Command("collect_steps", "record steps of a small and a large model, for train-router"),
    "train-router": Command("train_router", "train a router on recorded steps"),
}


def list_benches() -> list[str]:
    """Returns the names of the benchmarks, which are the modules of `reason/commands/bench`."""
    names = (file.name for file in files(BENCHES).iterdir())
    return sorted(name.removesuffix(".py") for name in names if name.endswith(".py") and not name.startswith("_"))


def read_help(package: str, module: str) -> str:
    """Returns the docstring of a module in this package, which is its help; the module is read and not imported."""
    source = files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def unknown_name(kind: str, name: str, names: list[str]) -> str:
    """Returns the message for a command or a benchmark that does not exist.

    >>> unknown_name("command", "solv", ["serve", "solve"])
    'there is no command solv (did you mean solve?); choose one of: serve, solve'
    """
    return f"there is no {kind} {name}{suggest_name(name, names)}; choose one of: {', '.join(names)}"
