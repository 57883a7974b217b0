"""Whether two models speak the same tokens."""

from __future__ import annotations

from collections.abc import Mapping


def check_same_vocabulary(
    path: str, ours: Mapping[str, int], writer_path: str, writers: Mapping[str, int], *, what: str = "tokens"
) -> None:
    """Raises: ValueError naming both models, and a token they differ in, unless they give the same ids to the same
    tokens. `what` is what the one would draft for the other.

    >>> check_same_vocabulary("A", {"a": 0, "b": 1}, "B", {"a": 0, "b": 2})
    Traceback (most recent call last):
    ValueError: A cannot draft tokens for B, their vocabularies differ: token 'b' is 1 in the one and 2 in the other
    """
    if ours == writers:
        return
    token = min(t for t in ours.keys() | writers.keys() if ours.get(t) != writers.get(t))
    raise ValueError(
        f"{path} cannot draft {what} for {writer_path}, their vocabularies differ: token {token!r} is "
        f"{ours.get(token, 'missing')} in the one and {writers.get(token, 'missing')} in the other"
    )
