"""Formats errors about settings: which one is wrong, why, and what would be right. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(ValueError):
    """A wrong setting; the message is one sentence that names it."""


def unknown_option(group: str, name: str, options: Iterable[str]) -> str:
    """Returns the message for an option that a group does not have.

    >>> unknown_option("search", "beem", ["beam", "best_of_n"])
    'there is no search=beem (did you mean beam?); choose one of: beam, best_of_n'
    """
    options = sorted(options)
    return f"there is no {group}={name}{suggest_name(name, options)}; choose one of: {', '.join(options)}"


def unknown_key(key: str, siblings: Iterable[str], namesakes: Iterable[str] = ()) -> str:
    """Returns the message for a key that does not exist; `siblings` are the keys beside it, `namesakes` those of the
    same name elsewhere.

    >>> unknown_key("search.widht", ["n", "width"])
    'there is no setting search.widht (did you mean search.width?); search has: n, width'
    >>> unknown_key("n", ["search", "seed"], ["search.n"])
    'there is no setting n (did you mean search.n?); this program has: search, seed'
    """
    parent, _, name = key.rpartition(".")
    names = sorted(sibling for sibling in siblings if not sibling.startswith("_"))
    same_name = " or ".join(namesakes)
    hint = f" (did you mean {same_name}?)" if same_name else suggest_name(name, names, f"{parent}." if parent else "")
    return f"there is no setting {key}{hint}; {parent or 'this program'} has: {', '.join(names)}"


def rejected_setting(key: str, error: BaseException, fields: Iterable[str]) -> str:
    """Returns the message for settings that a constructor did not accept; `fields` are its parameters.

    >>> rejected_setting("search", ValueError("n must be an int >= 1, got 0"), ["n"])
    'search.n must be an int >= 1, got 0'
    >>> rejected_setting("search", TypeError("f() got an unexpected keyword argument 'm'"), ["n"])
    'there is no setting search.m; search has: n'
    """
    fields = list(fields)
    text = str(error)
    if match := re.search(r"unexpected keyword argument '(\w+)'", text):
        return unknown_key(f"{key}.{match[1]}", fields)
    if match := re.search(r"missing .*argument.*: (.*)", text):
        return f"{key} lacks {match[1]}"
    starts_with_field = re.match(r"\w+", text)
    if starts_with_field and starts_with_field[0] in fields:
        return f"{key}.{text}"
    return text if text.startswith(f"{key}.") else f"{key}: {text or type(error).__name__}"


def suggest_name(name: str, choices: Iterable[str], prefix: str = "") -> str:
    """Returns ` (did you mean ...?)` with the closest choice, or nothing where none is close."""
    choices = list(choices)
    # the beginning of a name is too short to be close to it, such as `beam` to `beam_search`
    begun = [choice for choice in choices if len(name) > 1 and choice.startswith(name)]
    close = get_close_matches(name, choices, n=1) or begun
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
