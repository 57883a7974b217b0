"""Texts with named places, such as `{question}`, that a strategy fills in to write its prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from decoding.validation import require_text, shorten

_PLACE = re.compile(r"\{([a-z_]+)\}")


class Places(NamedTuple):
    """The places that one template must have, and those that it may have."""

    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


def validate_templates(templates: Mapping[str, str], places: Mapping[str, Places]) -> None:
    """Checks that there is a text for each name in `places`, and that it has its places and no other.

    Braces around anything but a name of small letters are text: LaTeX may stay as it is.

    >>> validate_templates({"refine": "{question}"}, {"refine": Places(("question", "notes"))})
    Traceback (most recent call last):
    ValueError: templates.refine must hold {notes}, got '{question}'

    Raises: ValueError naming the template and the place.
    """
    if not isinstance(templates, Mapping):
        raise ValueError(f"templates must be a mapping of names to texts, got {shorten(templates)}")
    for name in places.keys() - templates.keys():
        raise ValueError(f"templates.{name} is missing; templates are: {', '.join(places)}")
    for name, text in templates.items():
        if name not in places:
            raise ValueError(f"templates.{shorten(name)} is not a template; templates are: {', '.join(places)}")
        if not isinstance(text, str):
            raise ValueError(f"templates.{name} must be a text, got {shorten(text)}")
        require_text(f"templates.{name}", text)
        present, (needed, allowed) = set(_PLACE.findall(text)), places[name]
        for place in needed:
            if place not in present:
                raise ValueError(f"templates.{name} must hold {{{place}}}, got {shorten(text)}")
        for place in sorted(present.difference(needed, allowed)):
            known = ", ".join(f"{{{each}}}" for each in (*needed, *allowed)) or "no places"
            raise ValueError(f"templates.{name} cannot hold {{{place}}}; it has {known}")


def fill_template(template: str, **values: str) -> str:
    """Returns the template with its places filled in; what is filled in is not read for places.

    >>> fill_template("{question} {notes}", question="What is {notes}?", notes="7")
    'What is {notes}? 7'
    """
    return _PLACE.sub(lambda place: values[place[1]], template)
