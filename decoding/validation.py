"""Validates settings: each function raises ValueError with the setting's name, the valid values and the value given.

Every layer uses it; it imports no other module of the project.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TypeGuard

MAX_VALUE = 1_000_000
"""Largest count, number or seconds of a setting that names no other limit. It is far above any use, and small enough:
products of a few settings stay within floats, and a timeout in milliseconds within the 31 bits that a socket takes."""

MAX_INT = 2**63 - 1
"""Largest seed and largest budget: what tables and other programs read as an int."""

MAX_TOKEN_ID = 2**31 - 1
"""Largest token id; no vocabulary is larger."""


def shorten(value: object) -> str:
    """Returns a wrong value as an error shows it: as Python writes it, with the middle of a long one left out."""
    return reprlib.repr(value)


def is_count(value: object, *, at_least: int = 0, at_most: int | None = None) -> TypeGuard[int]:
    """True for an int (not a bool) of at least `at_least`, and at most `at_most` if that is given."""
    # bool is a subclass of int: True would count as 1
    is_in_range = isinstance(value, int) and value >= at_least and (at_most is None or value <= at_most)
    return is_in_range and not isinstance(value, bool)


def require_count(
    name: str, value: object, *, at_least: int = 0, at_most: int = MAX_VALUE, or_null: bool = False
) -> None:
    """Raises ValueError unless `value` is an int from `at_least` to `at_most`, or None where `or_null` allows it.

    The error names the upper limit where that is exceeded.

    >>> require_count("n", 0, at_least=1)
    Traceback (most recent call last):
    ValueError: n must be an int >= 1, got 0
    >>> require_count("n", 2_000_000, at_least=1)
    Traceback (most recent call last):
    ValueError: n must be an int from 1 to 1000000, got 2000000
    """
    if (or_null and value is None) or is_count(value, at_least=at_least, at_most=at_most):
        return
    valid = f"from {at_least} to {at_most}" if is_count(value, at_least=at_least) else f">= {at_least}"
    raise ValueError(f"{name} must be an int {valid}{' or null' if or_null else ''}, got {shorten(value)}")


def require_positive(name: str, value: object, *, at_most: float = MAX_VALUE) -> None:
    """Raises ValueError unless `value` is a number above 0 and at most `at_most`.

    >>> require_positive("temperature", 0)
    Traceback (most recent call last):
    ValueError: temperature must be a number > 0, got 0
    >>> require_positive("temperature", 1e300)
    Traceback (most recent call last):
    ValueError: temperature must be a number > 0 and <= 1000000, got 1e+300
    """
    if not is_number(value, low=0, high=at_most) or value == 0:
        limit = f" and <= {at_most}" if is_number(value, low=0) and value != 0 else ""
        raise ValueError(f"{name} must be a number > 0{limit}, got {shorten(value)}")


def require_not_negative(name: str, value: object, *, at_most: float = MAX_VALUE) -> None:
    """Raises ValueError unless `value` is a number from 0 to `at_most`.

    >>> require_not_negative("penalty", -1)
    Traceback (most recent call last):
    ValueError: penalty must be a number >= 0, got -1
    """
    if not is_number(value, low=0, high=at_most):
        limit = f" and <= {at_most}" if is_number(value, low=0) else ""
        raise ValueError(f"{name} must be a number >= 0{limit}, got {shorten(value)}")


def is_number(value: object, *, low: float = float("-inf"), high: float = float("inf")) -> TypeGuard[float]:
    """True for an int or float (not a bool, not NaN) from `low` to `high`.

    >>> is_number(0.5, high=1), is_number(True), is_number(float("nan"))
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def require_switch(name: str, value: object) -> None:
    """Raises ValueError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {shorten(value)}")


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises ValueError naming the valid choices when `value` is none of them.

    >>> require_choice("cost", "bytes", ("nodes", "tokens"))
    Traceback (most recent call last):
    ValueError: cost must be one of nodes, tokens; got 'bytes'
    """
    # `in` compares with ==, so an unhashable value is refused like any other
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {shorten(value)}")


def require_number(name: str, value: object, *, low: float, high: float) -> None:
    """Raises ValueError unless `value` is a number from `low` to `high`.

    >>> require_number("threshold", 3, low=-1, high=1)
    Traceback (most recent call last):
    ValueError: threshold must be in [-1, 1], got 3
    """
    if not is_number(value, low=low, high=high):
        raise ValueError(f"{name} must be in [{low}, {high}], got {shorten(value)}")


def require_share(name: str, value: object, *, above_zero: bool = False, below_one: bool = False) -> None:
    """Raises ValueError unless `value` is a number in [0, 1], without 0 with `above_zero`, without 1 with `below_one`.

    >>> require_share("top_p", 2, above_zero=True)
    Traceback (most recent call last):
    ValueError: top_p must be in (0, 1], got 2
    """
    if not is_number(value, low=0, high=1) or (above_zero and value == 0) or (below_one and value == 1):
        valid = f"{'(' if above_zero else '['}0, 1{')' if below_one else ']'}"
        raise ValueError(f"{name} must be in {valid}, got {shorten(value)}")


class InvalidText(ValueError):
    """Text that UTF-8 cannot encode, so that no tokenizer and no file takes it; `field` is where it was found."""

    def __init__(self, field: str, character: str, position: int) -> None:
        self.field = field
        # Python reads a byte of a name or argument that is not UTF-8 as one of these characters
        byte = ord(character) - 0xDC00
        what = f"the byte 0x{byte:02x}" if 0x80 <= byte <= 0xFF else f"the lone surrogate {character!r}"
        super().__init__(f"{field} must be Unicode text, got {what} at position {position}")


def require_package(what: str, package: str) -> None:
    """Raises ValueError unless a package of the extra `full` is installed; `what` needs it.

    >>> require_package("search=ets", "no_such_package")
    Traceback (most recent call last):
    ValueError: search=ets needs no_such_package: pip install 'reason-search[full]'
    """
    if find_spec(package) is None:
        raise ValueError(f"{what} needs {package}: pip install 'reason-search[full]'")


def require_words(name: str, value: object, *, or_empty: bool = False) -> None:
    """Raises ValueError unless `value` is a list of texts that are not blank.

    >>> require_words("step.markers", "Wait")
    Traceback (most recent call last):
    ValueError: step.markers must be a list of words, got 'Wait'
    """
    words = value if isinstance(value, Sequence) and not isinstance(value, str) else None
    if words is None or not (words or or_empty) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"{name} must be a list of words, got {value!r}")
    require_text(name, value)


def require_text(name: str, value: object) -> None:
    """Raises InvalidText unless all text in `value` is Unicode. Looks into mappings and lists; other values pass.

    It is called where text comes in: settings, requests, data files, questions. An empty `name` stands for the whole.

    >>> require_text("", {"user": "me", "stop": ["7", chr(0xD800)]})
    Traceback (most recent call last):
    decoding.validation.InvalidText: stop.1 must be Unicode text, got the lone surrogate '\\ud800' at position 0
    """
    waiting = [(name, value)]
    while waiting:  # not recursive: a client chooses the depth
        field, value = waiting.pop()
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidText(field, value[error.start], error.start) from None
        elif isinstance(value, Mapping):
            for key in value:
                require_text(f"a name in {field}" if field else "a name", key)
            waiting += [(f"{field}.{key}" if field else str(key), value[key]) for key in reversed(value)]
        elif isinstance(value, list | tuple):
            waiting += [(f"{field}.{i}" if field else str(i), value[i]) for i in reversed(range(len(value)))]


def require_token_ids(smallest: int, largest: int, vocab_size: int) -> None:
    """Raises ValueError with the token id, unless both are ids of a vocabulary of `vocab_size`.

    >>> require_token_ids(0, 32, 32)
    Traceback (most recent call last):
    ValueError: token id 32 is outside the model's vocabulary of 32
    """
    if smallest < 0 or largest >= vocab_size:
        wrong = smallest if smallest < 0 else largest
        raise ValueError(f"token id {wrong} is outside the model's vocabulary of {vocab_size}")
