"""Makes settings of plain functions, for `reason.load(scorer=my_function)`: they name what the command line names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from reason.config import plugins
from reason.config.errors import ConfigError

MODULE = "functions_of_load"
"""The module that holds the functions; settings name them as those of a plug-in."""

ROLES = {
    "scorer": ("scorer=function", "scorer.function={}"),
    "engine": ("engine=function", "engine.function={}"),
    "judge": ("scorer=judge", "scorer.model=small", "engine@small=function", "small.path=bytes", "small.function={}"),
}
"""The settings of each argument, to which those of the user are added."""


def function_overrides(overrides: Sequence[str], **functions: Callable[..., Any] | None) -> list[str]:
    """Returns the overrides that make a solver use these functions, by role, and those given. *Mutates* `MODULE`.

    Raises: ConfigError for what cannot be called, and for two settings of one thing.
    """
    made: list[str] = []
    for role, function in functions.items():
        if function is None:
            continue
        if not callable(function):
            raise ConfigError(f"{role} must be a function; an option is a text, load('{role}=NAME'), got {function!r}")
        made += [setting.format(_hold_function(function)) for setting in ROLES[role]]
    settings = [setting.partition("=")[0] for setting in (*made, *overrides)]
    for key in {setting.partition("=")[0] for setting in made}:
        if settings.count(key) > 1:
            raise ConfigError(f"{key} is set twice; a function given to load sets it")
    return [*made, *overrides]


def _hold_function(function: Callable[..., Any]) -> str:
    """Returns the name MODULE:NAME of the function, the same for each call."""
    module = sys.modules.setdefault(MODULE, ModuleType(MODULE))
    plugins.trusted_modules.add(MODULE)
    name = re.sub(r"\W", "_", getattr(function, "__name__", type(function).__name__))
    name = f"{name}_{id(function):x}"  # held below, so that no other function gets this id
    setattr(module, name, function)
    return f"{MODULE}:{name}"
