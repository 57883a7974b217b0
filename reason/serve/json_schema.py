"""Checks texts against a client's JSON schema, which is not trusted: nothing is fetched, and the work is bounded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from decoding.validation import shorten

MAX_SCHEMA_CHARS = 65_536
MAX_DEPTH = 64
MAX_STEPS = 50_000
"""Keywords that checking one text may apply; anyOf inside anyOf, or a reference in a circle, needs any number."""
PATTERN_S = 0.1
"""Seconds that one regular expression may take: some take years for twenty characters."""

_MAPS = ("properties", "$defs", "definitions", "dependentSchemas")
_DATA = ("enum", "const", "default", "examples")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_REFUSED = ("patternProperties", "$id")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]  # of jsonschema, which has no types


class InvalidSchema(ValueError):
    """A schema that is none, or that this server does not check texts against. `path` is the place inside it."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class _TooCostly(Exception):
    """Checking took more than `MAX_STEPS`."""


def parse_json(text: str) -> object:
    """Returns the value of a JSON text. Raises: ValueError where it is none; NaN and infinity are none.

    >>> parse_json('{"a": [1, 2.0]}')
    {'a': [1, 2.0]}
    """
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant, parse_float=_read_float)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    return value


def write_canonical(value: object) -> str:
    """Returns the JSON that equal values share: keys in order, no blanks, 2 for 2.0.

    >>> write_canonical({"b": 2.0, "a": "é"}) == write_canonical({"a": "é", "b": 2}) == '{"a":"é","b":2}'
    True
    """
    return json.dumps(_with_whole_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def strip_fence(text: str) -> str:
    r"""Returns a text without blanks around it, and without one Markdown fence.

    >>> strip_fence(' ```json\n{"a": 1}\n``` ')
    '{"a": 1}'
    """
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.partition("\n")[2][:-3].strip()
    return text


class JsonSchema:
    """A schema (draft 2020-12) that values are checked against. Raises: InvalidSchema.

    >>> JsonSchema({"type": "object", "required": ["a"]}).accepts({"a": 1}), JsonSchema({"type": "null"}).accepts(0)
    (True, False)
    """

    def __init__(self, schema: object) -> None:
        if not isinstance(schema, dict | bool):
            raise InvalidSchema(f"a schema is an object, got {shorten(schema)}")
        _check_values(schema, "", 0)
        self.text = json.dumps(schema, separators=(",", ":"))
        if len(self.text) > MAX_SCHEMA_CHARS:
            raise InvalidSchema(f"the schema has {len(self.text):,} characters; this server reads {MAX_SCHEMA_CHARS:,}")
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise InvalidSchema(error.message[:300], ".".join(map(str, error.absolute_path))) from None
        self._schema = schema
        resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for path, reference in _find_references(schema, ""):
            if not reference.startswith("#"):
                raise InvalidSchema(f"{reference!r} is outside of the schema; nothing is fetched", path)
            try:
                resolver.lookup(reference)
            except Unresolvable:
                raise InvalidSchema(f"{reference!r} is not in the schema", path) from None

    def accepts(self, value: object) -> bool:
        """Returns whether a value matches; one that cannot be checked within `MAX_STEPS` does not."""
        try:
            return bool(_make_validator(self._schema).is_valid(value))
        except (_TooCostly, RecursionError, TimeoutError, Unresolvable, ArithmeticError):
            return False


def _make_validator(schema: object) -> Any:  # of a class that jsonschema makes
    """Returns a validator that fetches nothing and counts its steps."""
    left = MAX_STEPS

    def spend(steps: int) -> None:
        nonlocal left
        left -= steps
        if left < 0:
            raise _TooCostly

    def apply(keyword: Keyword, validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        is_pairwise = keyword is Draft202012Validator.VALIDATORS["uniqueItems"] and isinstance(instance, list)
        spend(1 + (len(instance) ** 2 // 2 if is_pairwise else 0))
        if isinstance(value, list):
            spend(len(value))
        yield from keyword(validator, value, instance, schema) or ()

    keywords: dict[str, Keyword] = {**Draft202012Validator.VALIDATORS, "pattern": _check_pattern}
    counted = {name: partial(apply, keyword) for name, keyword in keywords.items()}
    return extend(Draft202012Validator, counted)(schema, registry=Registry())


def _check_pattern(validator: Any, pattern: str, instance: object, schema: object) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not regex.search(pattern, instance, timeout=PATTERN_S):
        yield ValidationError("it does not match the pattern")


def _check_values(value: object, path: str, depth: int) -> None:
    """Raises InvalidSchema for what is no JSON or too deep."""
    if depth > MAX_DEPTH:
        raise InvalidSchema(f"the schema is nested more than {MAX_DEPTH} deep", path)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidSchema("NaN and infinity are no JSON", path)
    for key, inner in _entries(value):
        _check_values(inner, _join(path, key), depth + 1)


def _entries(value: object) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(str(key), inner) for key, inner in value.items()]
    return [(str(i), inner) for i, inner in enumerate(value)] if isinstance(value, list) else []


def _find_references(schema: object, path: str) -> Iterator[tuple[str, str]]:
    """Yields the references of a schema with their places. Raises: InvalidSchema for keywords that are not checked."""
    for key, inner in _entries(schema):
        place = _join(path, key)
        if not isinstance(schema, Mapping):
            yield from _find_references(inner, place)
        elif key in _REFUSED:
            raise InvalidSchema(f"{key} is not supported in a schema", place)
        elif key in _REFERENCES and isinstance(inner, str):
            yield place, inner
        elif key == "pattern" and isinstance(inner, str):
            try:
                regex.compile(inner)
            except regex.error as error:
                raise InvalidSchema(f"pattern is no regular expression: {shorten(str(error))}", place) from None
        elif key in _MAPS:
            for name, schema_of_name in _entries(inner):
                yield from _find_references(schema_of_name, _join(place, name))
        elif key not in _DATA:
            yield from _find_references(inner, place)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def _with_whole_numbers(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(inner) for key, inner in value.items()}
    return [_with_whole_numbers(inner) for inner in value] if isinstance(value, list) else value
