"""Spend compute at test time to answer better.

>>> import reason
>>> with reason.load("search=self_consistency", "search.n=4") as solver:      # names as on the command line
...     solution = solver.solve("What is the remainder when 7^2 is divided by 5?")
>>> len(solution.result.candidates)
4
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from reason.config.prefix import use_one_prefix

if TYPE_CHECKING:
    from reason.build import asolve, from_config, load, solve
    from reason.config.errors import ConfigError
    from reason.problem import Problem, Solution
    from reason.solver import Solver

if sys.version_info < (3, 11):  # noqa: UP036 - pip checks it, but a checkout may be on the path of any Python
    sys.exit(f"reason needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})")

use_one_prefix()

__all__ = ["ConfigError", "Problem", "Solution", "Solver", "asolve", "from_config", "load", "solve"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is asked for, so that commands and servers import no more than they use."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("reason-search")
        except PackageNotFoundError:
            return "unknown"
    if name in ("asolve", "from_config", "load", "solve"):
        from reason import build

        return getattr(build, name)
    if name in ("Problem", "Solution"):
        from reason import problem

        return getattr(problem, name)
    if name == "Solver":
        from reason.solver import Solver

        return Solver
    if name == "ConfigError":
        from reason.config.errors import ConfigError

        return ConfigError
    raise AttributeError(f"module 'reason' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the public names, those that `__getattr__` makes among them."""
    return sorted([*__all__, "__version__"])
