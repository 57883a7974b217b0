"""Imports the user's modules that `plugins` lists; settings may name classes of these modules from then on."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from reason.config.errors import ConfigError
from reason.config.prefix import INNER, is_checkout

trusted_modules: set[str] = set()
"""Names of the imported modules; like an import, they hold for the whole process."""


def load_plugins(given: object) -> None:
    """Imports what `plugins=[...]` lists: names of modules, or files `FOLDER/NAME.py`, imported as NAME.

    Raises: ConfigError naming the one that cannot be imported.

    >>> load_plugins(["os.path.nothing"])
    Traceback (most recent call last):
    reason.config.errors.ConfigError: plugins: cannot import os.path.nothing (No module named 'os.path.nothing'; \
'os.path' is not a package)
    """
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise ConfigError(f"plugins must be a list of modules or files, got {given!r}")
    for name in given:
        try:
            module = _import_file(Path(name).expanduser()) if name.endswith(".py") else importlib.import_module(name)
        except ConfigError:
            raise
        except Exception as error:  # any error of the user's code makes this setting wrong
            raise ConfigError(f"plugins: cannot import {name} ({_explain(error)})") from error
        trusted_modules.add(module.__name__)


def is_trusted(target: str) -> bool:
    """Returns whether `target` is in a module that was loaded as a plugin, or in a package that was."""
    return any(target.startswith(f"{module}.") for module in trusted_modules)


def require_function(name: object) -> None:
    """Raises ValueError unless `name` is MODULE:NAME, of a module that was loaded as a plugin."""
    module, _, function = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not module or not function.isidentifier():
        raise ValueError(f"function must be MODULE:NAME, such as my_rules:score, got {name!r}")
    if not is_trusted(f"{module}.{function}"):
        raise ValueError(f"function must be of a module that plugins lists (plugins=[{module}]), got {name}")


def find_function(key: str, name: str | None) -> Callable[..., Any]:
    """Returns the function that the setting `key` names.

    Raises: ValueError if the module has none of this name, or none is named.
    """
    if name is None:
        raise ValueError(f"{key} must be set, to MODULE:NAME of a module that plugins lists")
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute, None)
    if not callable(function):
        raise ValueError(f"{key}={name}: {module} has no function {attribute}")
    return function  # type: ignore[no-any-return]


def _explain(error: Exception) -> str:
    """The error's text; where a plug-in of a checkout names a package that a wheel has inside `reason`, its name."""
    text = str(error) or type(error).__name__
    inner = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    return f"{text}; write reason.{inner}..." if inner in INNER and not is_checkout() else text


def _import_file(file: Path) -> ModuleType:
    """Returns the module in `file`. Raises: ConfigError if another module has its name."""
    name, place = file.stem, file.resolve()
    loaded = sys.modules.get(name)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() == place:
        return loaded
    if not name.isidentifier():
        raise ConfigError(f"plugins: the name of {file} is not that of a module; call it like a variable")
    if not file.is_file():
        raise ConfigError(f"plugins: there is no file {file}")
    if loaded is not None or importlib.util.find_spec(name) is not None:
        raise ConfigError(f"plugins: {file} cannot be the module {name}, there is another one; rename the file")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and `_target_` look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
