"""Spend compute at test time to answer better.

>>> import reason
>>> with reason.load("search=self_consistency", "search.n=4") as solver:      # names as on the command line
...     solution = solver.solve("What is the remainder when 7^2 is divided by 5?")
>>> len(solution.result.candidates)
4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reason.config.errors import ConfigError
from reason.problem import Problem, Solution
from reason.solver import Solver

if TYPE_CHECKING:
    from reason.build import from_config, load

__all__ = ["ConfigError", "Problem", "Solution", "Solver", "from_config", "load"]


def __getattr__(name: str) -> Any:
    """`load` and `from_config` bring in Hydra, so they are imported when they are asked for. So is the version."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("reason-search")
        except PackageNotFoundError:
            return "unknown"
    if name in ("from_config", "load"):
        from reason import build

        return getattr(build, name)
    raise AttributeError(f"module 'reason' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the public names, those that `__getattr__` makes among them."""
    return sorted([*__all__, "__version__"])
