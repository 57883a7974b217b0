"""Validates settings: each function raises ValueError with the setting's name, the valid values and the value given.

Every layer uses it; it imports no other module of the project.
"""

from __future__ import annotations

from collections.abc import Sequence


def is_count(value: object, *, at_least: int = 0) -> bool:
    """True for an int (not a bool) of at least `at_least`."""
    # bool is a subclass of int: True would count as 1
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def require_count(name: str, value: object, *, at_least: int = 0, or_null: bool = False) -> None:
    """Raises ValueError unless `value` is an int of at least `at_least`, or None where `or_null` allows it.

    >>> require_count("n", 0, at_least=1)
    Traceback (most recent call last):
    ValueError: n must be an int >= 1, got 0
    """
    if not is_count(value, at_least=at_least) and not (or_null and value is None):
        raise ValueError(f"{name} must be an int >= {at_least}{' or null' if or_null else ''}, got {value!r}")


def require_positive(name: str, value: object) -> None:
    """Raises ValueError unless `value` is a number above 0.

    >>> require_positive("temperature", 0)
    Traceback (most recent call last):
    ValueError: temperature must be a number > 0, got 0
    """
    # NaN fails the comparison too, because it is negated
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a number > 0, got {value!r}")


def require_not_negative(name: str, value: object) -> None:
    """Raises ValueError unless `value` is a number of at least 0.

    >>> require_not_negative("penalty", -1)
    Traceback (most recent call last):
    ValueError: penalty must be a number >= 0, got -1
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number >= 0, got {value!r}")


def require_switch(name: str, value: object) -> None:
    """Raises ValueError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises ValueError naming the valid choices when `value` is none of them.

    >>> require_choice("cost", "bytes", ("nodes", "tokens"))
    Traceback (most recent call last):
    ValueError: cost must be one of nodes, tokens; got 'bytes'
    """
    # `in` compares with ==, so an unhashable value is refused like any other
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def require_number(name: str, value: object, *, low: float, high: float) -> None:
    """Raises ValueError unless `value` is a number from `low` to `high`.

    >>> require_number("threshold", 3, low=-1, high=1)
    Traceback (most recent call last):
    ValueError: threshold must be in [-1, 1], got 3
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value!r}")


def require_share(name: str, value: object, *, above_zero: bool = False) -> None:
    """Raises ValueError unless `value` is a number in [0, 1], or in (0, 1] with `above_zero`.

    >>> require_share("top_p", 2, above_zero=True)
    Traceback (most recent call last):
    ValueError: top_p must be in (0, 1], got 2
    """
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    if not is_share or (above_zero and value == 0):
        raise ValueError(f"{name} must be in {'(' if above_zero else '['}0, 1], got {value!r}")


def require_token_ids(smallest: int, largest: int, vocab_size: int) -> None:
    """Raises ValueError with the token id, unless both are ids of a vocabulary of `vocab_size`.

    >>> require_token_ids(0, 32, 32)
    Traceback (most recent call last):
    ValueError: token id 32 is outside the model's vocabulary of 32
    """
    if smallest < 0 or largest >= vocab_size:
        wrong = smallest if smallest < 0 else largest
        raise ValueError(f"token id {wrong} is outside the model's vocabulary of {vocab_size}")
