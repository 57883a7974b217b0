"""Code of one's own that settings may name: what `plugins` lists is imported, and trusted from then on."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from reason.config.errors import ConfigError

_TRUSTED: set[str] = set()  # an import holds for the whole process, and so does this


def load(given: Any) -> None:
    """Import what `plugins=[...]` lists: names of modules, or files `FOLDER/NAME.py`, imported as NAME.

    Raises: ConfigError naming the one that cannot be imported.

    >>> load(["os.path.nothing"])
    Traceback (most recent call last):
    reason.config.errors.ConfigError: plugins: cannot import os.path.nothing (No module named 'os.path.nothing'; \
'os.path' is not a package)
    """
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise ConfigError(f"plugins must be a list of modules or files, got {given!r}")
    for name in given:
        try:
            module = _from_file(Path(name).expanduser()) if name.endswith(".py") else importlib.import_module(name)
        except ConfigError:
            raise
        except Exception as error:  # their code: whatever it raises, it is this setting that is to blame
            raise ConfigError(f"plugins: cannot import {name} ({error or type(error).__name__})") from error
        _TRUSTED.add(module.__name__)


def trusted(target: str) -> bool:
    """Whether `target` is in a module that was loaded as a plugin, or in a package that was."""
    return any(target.startswith(f"{module}.") for module in _TRUSTED)


def _from_file(file: Path) -> ModuleType:
    """The module in `file`. Raises: ConfigError if its name is that of another module."""
    name, place = file.stem, file.resolve()
    known = sys.modules.get(name)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() == place:
        return known
    if not name.isidentifier():
        raise ConfigError(f"plugins: the name of {file} is not that of a module; call it like a variable")
    if not file.is_file():
        raise ConfigError(f"plugins: there is no file {file}")
    if known is not None or importlib.util.find_spec(name) is not None:
        raise ConfigError(f"plugins: {file} cannot be the module {name}, there is another one; rename the file")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and `_target_` look for it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
