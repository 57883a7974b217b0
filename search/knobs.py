"""Checks for the knobs of strategies: a wrong value is named the moment the strategy is made."""

from __future__ import annotations

from decoding.core import is_count


def require_count(name: str, value: object, *, at_least: int) -> None:
    """Raises ValueError unless `value` is an int of at least `at_least`.

    >>> require_count("n", 0, at_least=1)
    Traceback (most recent call last):
    ValueError: n must be an int >= 1, got 0
    """
    if not is_count(value, at_least=at_least):
        raise ValueError(f"{name} must be an int >= {at_least}, got {value!r}")


def require_positive(name: str, value: object) -> None:
    """Raises ValueError unless `value` is a number above 0.

    >>> require_positive("temperature", 0)
    Traceback (most recent call last):
    ValueError: temperature must be a number > 0, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a number > 0, got {value!r}")
