"""Which drafts an acceptance rule may judge: a rejection rule is lossless only for the way of drawing it undoes."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.speculation.interfaces import Draft, DrawKind
from decoding.speculation.target_logits import Acceptance


def check_pairing(acceptance: Acceptance, draw: DrawKind) -> None:
    """To be called at load, before any model is.

    Raises: ValueError such as "acceptance=k_sequential needs draw=iid, got draw=likely".
    """
    if draw not in acceptance.draws:
        raise ValueError(_wanted(acceptance) + f"got draw={draw}")


def check_drawn(acceptance: Acceptance, drafts: Sequence[Draft]) -> None:
    """The same for drafts as they come; the empty draft suits every rule.

    Raises: ValueError.
    """
    for draft in drafts:
        if not len(draft):
            continue
        if draft.drawn is None:
            raise ValueError(_wanted(acceptance) + "got a draft that does not say how it was drawn")
        check_pairing(acceptance, draft.drawn.kind)


def _wanted(acceptance: Acceptance) -> str:
    name = type(acceptance).__module__.rpartition(".")[2]  # the file's, which is the yaml's
    return f"acceptance={name} needs draw={' or '.join(acceptance.draws)}, "
