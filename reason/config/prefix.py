"""Gives the packages beside `reason` in a checkout the names that they have in an installed wheel.

In a checkout `search`, `decoding` and `conf` lie beside `reason`. The wheel has them inside it, because other projects
use these names too (scripts/dev/wheel). `reason.search`, `reason.decoding` and `reason.conf` work in both: what runs in
both, such as an entry point, a Hydra search path or a plug-in, writes these.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PREFIX = "reason."
INNER = ("search", "decoding", "conf")
"""Packages that are inside `reason` in a wheel."""


def installed_name(name: str) -> str:
    """Returns the dotted name under which something of these packages can be imported everywhere.

    >>> installed_name("search.strategies.ets.Ets"), installed_name("reason.solver.Solver"), installed_name("mine.Ets")
    ('reason.search.strategies.ets.Ets', 'reason.solver.Solver', 'mine.Ets')
    """
    return PREFIX + name if name.partition(".")[0] in INNER else name


def canonical_name(name: str) -> str:
    """Returns the dotted name as settings, saved ones among them, have it: the same from a checkout and from a wheel.

    >>> canonical_name("reason.search.strategies.ets.Ets"), canonical_name("reason.solver.Solver")
    ('search.strategies.ets.Ets', 'reason.solver.Solver')
    """
    inner = name.removeprefix(PREFIX)
    return inner if inner.partition(".")[0] in INNER else name


class CheckoutFinder(MetaPathFinder, Loader):
    """Finds `reason.search` and what is below it as `search`: the same modules, not second copies of them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = canonical_name(fullname)
        if real == fullname or find_spec(real) is None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        # Python takes the module that lies here after this call, so both names give one module.
        sys.modules[module.__name__] = importlib.import_module(canonical_name(module.__name__))


def is_checkout() -> bool:
    """Returns whether this is a checkout, where the inner packages lie beside `reason`."""
    return not (Path(__file__).parents[1] / INNER[0]).is_dir()


def use_one_prefix() -> None:
    """Makes the names with the prefix work in a checkout; a wheel has them."""
    if is_checkout() and not any(isinstance(finder, CheckoutFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, CheckoutFinder())  # first: the path of `reason.search` is that of `search`
