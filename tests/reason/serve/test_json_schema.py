"""Schemas and texts are not trusted: whatever they are, checking ends soon, fetches nothing, and says what is wrong."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.serve.json_schema import MAX_DEPTH, InvalidSchema, JsonSchema, parse_json, write_canonical

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(VALUES)
def test_canonical_json_is_equal_for_equal_values(value: Any) -> None:
    text = write_canonical(value)
    assert parse_json(text) == value
    assert write_canonical(parse_json(text)) == text


@given(VALUES)
def test_any_value_is_a_schema_or_refused(value: Any) -> None:
    try:
        schema = JsonSchema(value)
    except InvalidSchema:
        return
    assert schema.accepts(value) in (True, False)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "{", "", "[" * 100_000, "1" * 10_000, '{"a": 1} x'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"b": 1}
    for _ in range(depth):
        value = {"a": value, "b": 1}
    return value


COSTLY: list[tuple[dict[str, Any], Any]] = [
    ({"$ref": "#"}, 1),
    ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
    ({"properties": {"a": {"anyOf": [{"$ref": "#"}] * 2}}, "required": ["c"]}, nested(50)),
    (
        {
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {}},
            "$ref": "#/$defs/d0",
        },
        1,
    ),
    ({"uniqueItems": True}, [{"a": i} for i in range(5000)]),
    ({"pattern": "^(a|a)*$"}, "a" * 60 + "b"),
]


@pytest.mark.parametrize(("schema", "value"), COSTLY, ids=range(len(COSTLY)))
def test_what_would_take_years_is_not_accepted(schema: dict[str, Any], value: Any) -> None:
    """A test without these limits does not end."""
    assert not JsonSchema(schema).accepts(value)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/s", "file:///etc/passwd", "other.json#/a", "//host/x"])
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_references_are_never_fetched(monkeypatch: pytest.MonkeyPatch, reference: str, keyword: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(InvalidSchema, match="nothing is fetched"):
        JsonSchema({"properties": {"a": {keyword: reference}}})


def test_references_inside_work_and_recursive_ones_end() -> None:
    tree = JsonSchema(
        {
            "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}},
            "$ref": "#/$defs/tree",
        }
    )
    assert tree.accepts({"left": {"left": {}}})
    assert not tree.accepts({"left": {"left": 3}})


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = JsonSchema({"properties": {"$ref": {"type": "string"}, "pattern": {"type": "integer"}, "$id": {}}})
    assert schema.accepts({"$ref": "http://x", "pattern": 3})
    assert not schema.accepts({"pattern": "("})


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$id": "http://x"}, "$id"),
        ({"items": {"patternProperties": {}}}, "items.patternProperties"),
        ({"enum": [float("inf")]}, "enum.0"),
        ({"required": ["x" * 100] * 1000}, ""),
        (nested(MAX_DEPTH), "a"),
    ],
)
def test_refused_schema_is_named_with_its_place(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidSchema) as error:
        JsonSchema(schema)
    assert error.value.path.startswith(path)
