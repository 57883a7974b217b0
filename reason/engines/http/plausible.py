"""Reads single values of replies. What cannot be is not believed: a count as if not reported, the rest as an error."""

from __future__ import annotations

from decoding.validation import is_count, is_number, shorten

_ROUNDING = 1e-3  # log-probabilities in half precision may be this far above 0
_LOWEST_LOGPROB = -1e6  # servers send -9999 for "very unlikely"


def read_count(value: object, at_most: int) -> int | None:
    """Returns a count that a server reports; None where it is none: negative, fractional, too large, no number.

    >>> [read_count(value, 10) for value in (3, 0, 11, -1, 2.5, True, "3", None, float("nan"))]
    [3, 0, None, None, None, None, None, None, None]
    """
    return value if is_count(value, at_most=at_most) else None


def read_logprob(value: object) -> float:
    """Returns the log-probability of a token; one above 0 by rounding is 0.

    -inf is none: a token of probability 0 is never written, and one such value spoils every mean.
    Raises: ValueError.

    >>> read_logprob(-0.5), read_logprob(1e-6)
    (-0.5, 0.0)
    """
    if not is_number(value, low=_LOWEST_LOGPROB, high=_ROUNDING):
        raise ValueError(f"{shorten(value)} is no log-probability")
    return min(float(value), 0.0)


def read_token(value: object, vocab_size: int) -> int:
    """Returns the id of a token. Raises: ValueError outside the vocabulary.

    >>> read_token(7, 8)
    7
    """
    token = read_count(value, vocab_size - 1)
    if token is None:
        raise ValueError(f"{shorten(value)} is no token of a vocabulary of {vocab_size}")
    return token


def read_text(value: object) -> str:
    """Returns text as UTF-8 can hold it: the halves of a character are joined, a lone half becomes U+FFFD.

    Servers cut characters in two where they stop at a length, and JSON can hold the half. Raises: ValueError.

    >>> read_text("\\ud83d\\ude00"), read_text("a\\ud83d")
    ('😀', 'a�')
    """
    if not isinstance(value, str):
        raise ValueError(f"{shorten(value)} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value
