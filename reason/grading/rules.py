"""Grades two canonical answers as far as possible without computer algebra; pure functions."""

from __future__ import annotations

import re

from reason.grading.canonical import MAX_CHARS
from reason.grading.grade import RIGHT, WRONG, Grade, ungraded_because

MAX_DIGITS = 2048  # in one number
MAX_DEPTH = 20  # of nested brackets: parsing costs much more than linearly in it
MAX_TOWER = 2  # exponents on top of each other: 2^{3^4} may be evaluated, 2^{3^{4^5}} may not

_INTEGER = re.compile(r"-?\d+")
_LETTER = re.compile(r"[A-Z]")
_WORDS = re.compile(r"[a-z]{2}[a-z ]*[a-z]")
_RELATION = re.compile(r"\\(?:ge|le|ne)(?![a-z])|[<>]")  # alone before a value: at least 7 is not 7
_IN_BASE = re.compile(r"(\d+)_\{?(\d+)\}?")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_TOWER_TOKEN = re.compile(r"\*\*|\\[A-Za-z]+|\\.|\d+|\S", re.DOTALL)


def grade_by_rules(gold: str, answer: str, *, text: bool = False) -> Grade | None:
    """Grades `answer`, both in canonical form; None if only computer algebra can decide.

    `text`: the gold answer is a word, so that `east` differs from `seat`, which as products of letters are equal.

    >>> str(grade_by_rules("33", "33")), str(grade_by_rules("33", "34")), grade_by_rules("1/3", "0.333333") is None
    ('right', 'wrong', True)
    >>> grade_by_rules("7", "9^{9^{9^9}}")
    Grade(value='wrong', reason='answer: a tower of exponents')
    """
    if gold == answer:
        return RIGHT
    for plain in (_INTEGER, _LETTER):
        if plain.fullmatch(gold) and plain.fullmatch(answer):
            return WRONG
    if _WORDS.fullmatch(gold) and _WORDS.fullmatch(answer) and (text or sorted(gold) != sorted(answer)):
        return WRONG
    if bool(_RELATION.match(gold)) != bool(_RELATION.match(answer)):
        return WRONG
    bases = [_IN_BASE.fullmatch(number) for number in (gold, answer)]
    if bases[0] and bases[1] and bases[0].groups() != bases[1].groups():
        return WRONG
    if why := refusal_reason(gold):
        return ungraded_because(f"gold answer: {why}")
    if why := refusal_reason(answer):
        return Grade("wrong", f"answer: {why}")
    return None


def refusal_reason(answer: str) -> str:
    """Returns why `answer` is refused by the grader, empty if it is not. Linear in its length.

    >>> refusal_reason("x" * 5000), refusal_reason("2^{10}"), refusal_reason("2^2^2^2")
    ('longer than 4096 characters', '', 'a tower of exponents')
    """
    if len(answer) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    if _LONG_NUMBER.search(answer):
        return f"a number of more than {MAX_DIGITS} digits"
    depth, tower = _heights(answer)
    if depth > MAX_DEPTH:
        return f"brackets nested more than {MAX_DEPTH} deep"
    return "a tower of exponents" if tower > MAX_TOWER else ""


def _heights(text: str) -> tuple[int, int]:
    """Returns the nesting depth of brackets and the height of exponents: 1 in `x^2y^2`, 3 in `2^{2^{2^2}}`."""
    groups: list[tuple[int, int]] = []
    depth, base, chain, highest = (
        0,
        0,
        0,
        0,
    )  # the last three: exponents around the open bracket; in a row since it; the most seen
    after_hat = False
    for token in _TOWER_TOKEN.findall(text):
        if token in ("^", "**"):
            chain += 1
            highest = max(highest, base + chain)
            after_hat = True
            continue
        if token in ("{", "("):
            groups.append((base, chain if after_hat else 0))
            base, chain = base + (chain if after_hat else 0), 0
            depth = max(depth, len(groups))
        elif token in ("}", ")"):
            base, chain = groups.pop() if groups else (0, 0)
        elif not after_hat:
            chain = 0
        after_hat = False
    return depth, highest
