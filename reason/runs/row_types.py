"""Checks that the fields of a row that was read from disk have the types that its class declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_UNIONS = (UnionType, Union)
_FIELD_TYPES: dict[type, dict[str, Any]] = {}


def require_types(row: object, name: str = "") -> None:
    """Raises TypeError naming the first field of a dataclass, or of one in its fields, whose value has another type.

    >>> from decoding.core import Usage
    >>> require_types(Usage(tokens="many"), "usage.")
    Traceback (most recent call last):
    TypeError: usage.tokens must be int, got 'many'
    """
    for field, hint in _field_types(type(row)).items():
        _require_type(getattr(row, field), hint, f"{name}{field}")


def _require_type(value: object, hint: Any, name: str) -> None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, tuple):
        for i, entry in enumerate(value):
            _require_type(entry, arguments[0], f"{name}[{i}]")
    elif origin is Mapping and isinstance(value, Mapping):
        for key, entry in value.items():
            _require_type(key, arguments[0], f"a key of {name}")
            _require_type(entry, arguments[1], f"{name}[{key!r}]")
    elif is_dataclass(value) and type(value) in (hint, *arguments):
        require_types(value, f"{name}.")
    elif not _has_type(value, hint):
        raise TypeError(f"{name} must be {_describe(hint)}, got {str(value)[:60]!r}")


def _has_type(value: object, hint: Any) -> bool:
    """True for a plain value of this type; an int is a float, and a bool is no number."""
    origin = get_origin(hint)
    if origin in _UNIONS:
        return any(_has_type(value, kind) for kind in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint is object:
        return True
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(hint, type) and isinstance(value, hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) in _UNIONS:
        return " or ".join(_describe(kind) for kind in get_args(hint))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return "null" if hint is NoneType else getattr(hint, "__name__", str(hint))


def _field_types(kind: type) -> dict[str, Any]:
    if kind not in _FIELD_TYPES:  # reading the annotations of a class takes long
        hints = get_type_hints(kind)
        _FIELD_TYPES[kind] = {field.name: hints[field.name] for field in fields(kind)}
    return _FIELD_TYPES[kind]
