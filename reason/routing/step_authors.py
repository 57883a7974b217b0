"""Remembers which of two models wrote each step of a problem's branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from decoding.core import Tokens
from search.tree import Step


@dataclass
class _Place:
    """The author of the step that ends here, and the places behind it by the tokens of the next step."""

    author: str | None = None
    next_places: dict[Tokens, _Place] = field(default_factory=dict)


class StepAuthors:
    """Finds the authors of the steps of a prefix, of which a request holds the tokens alone.

    Where both models wrote the same step after the same steps, the later one counts.

    >>> authors, step = StepAuthors(), Step((1, 2), "So.")
    >>> authors.record((), replace(step, model="draft"))
    >>> [found.model for found in authors.name_authors([step, step])]
    ['draft', None]
    """

    def __init__(self) -> None:
        self._root = _Place()

    def record(self, previous_steps: Sequence[Step], step: Step) -> None:
        """Stores `step.model` as the author of the step after these steps. *Mutates* self."""
        place = self._root
        for each in (*previous_steps, step):
            place = place.next_places.setdefault(each.tokens, _Place())
        place.author = step.model

    def name_authors(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Returns the steps with their authors in `model`; None for a step that no model wrote here."""
        place: _Place | None = self._root
        named = []
        for step in steps:
            place = None if place is None else place.next_places.get(step.tokens)
            named.append(step if place is None else replace(step, model=place.author))
        return tuple(named)
