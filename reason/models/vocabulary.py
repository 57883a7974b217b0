"""Whether two models speak the same tokens."""

from __future__ import annotations

from collections.abc import Mapping

MEETINGS = ("same", "own")


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


def check_steps(
    vocabulary: str, path: str, ours: Mapping[str, int] | None, writer_path: str, writers: Mapping[str, int] | None
) -> None:
    """Whether a small model may write steps for a large one: in ids where the setting `vocabulary` is `same`, in text
    where it is `own`. A vocabulary that is not known yet is None.

    Raises: ValueError for another word, and for `same` where they differ.
    """
    if vocabulary not in MEETINGS:
        raise ValueError(f"vocabulary must be one of {', '.join(MEETINGS)}; got {vocabulary!r}")
    if vocabulary == "own" or ours is None or writers is None:
        return
    try:
        check_same_vocabulary(path, ours, writer_path, writers, what="steps")
    except ValueError as error:
        raise ValueError(f"{error}; with draft.vocabulary=own they hand each other text") from None
