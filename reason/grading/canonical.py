r"""Gives each answer one spelling, so that a vote counts `033`, `$33$` and `33.0` together.

Only cheap and exact rewrites are made: two different results may still be equal, and `reason.grading` then compares
them by computer algebra. The result is valid LaTeX.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 4096  # longer than any answer; longer texts are only stripped
_MAX_DIGITS = 64  # of a decimal or fraction that is worth exact arithmetic
_MAX_PLACES = 5  # decimals with more places may have been rounded: they stay decimals, to be compared as such

_WRAPPED = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*)\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*"
    r"|\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|bf|boxed|fbox|framebox)\s*\{(?P<f>[^{}]*)\}",
    re.DOTALL,
)
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\!\s*", ""),
        (r"(?<=\d)(?<!\d{4})(?:\\,|\\ |~)(?=\d{3}(?!\d))", ""),  # groups of thousands
        ("\u00bd", r"\\frac{1}{2}"),
        ("\u221e", r"\\infty "),
        ("\u222a", r"\\cup "),
        ("\u03c0", r"\\pi "),
        (r"\u221a ?(?:\(([^()]*)\)|(\d+|[a-z]))", r"\\sqrt{\1\2}"),
        (r"\{,\}", ","),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![a-zA-Z]))|[~\s]", " "),
        (r"\\?\$", ""),
        (r"(?<!\\)%", r"\\%"),
        ("\u2212", "-"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:left|right)(?![a-zA-Z])(?:\s*\.)?|\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
        (r"\\displaystyle(?![a-zA-Z])", ""),
        (r"\\leq(?![a-zA-Z])", r"\\le"),
        (r"\\geq(?![a-zA-Z])", r"\\ge"),
        (r"\\neq(?![a-zA-Z])", r"\\ne"),
        (r"\\frac ?(\d|\\pi(?![a-zA-Z]))(?=[ {\\\da-zA-Z])", r"\\frac{\1}"),
        (r"(\\frac\{[^{}]*\}) ?([a-zA-Z\d]|\\pi(?![a-zA-Z]))", r"\1{\2}"),
        (r"\\sqrt ?(\d)", r"\\sqrt{\1}"),
        (r"([\^_])\{(\w)\}", r"\1\2"),
        (r" {2,}", " "),
        (r" ,", ","),
        # a space goes unless it is between letters or digits, or makes `1, 234` a list and no number
        (r"(?<![0-9A-Za-z])(?<!\d,) | (?![0-9A-Za-z])|(?<=\d,) (?!\d{3}(?!\d))", ""),
    )
]
_UNIT = re.compile(
    r"(.*?) ?(?:\^\{?\\circ\}?|\u00b0|\\(?:text|mbox|mathrm|textrm)\{"
    r"(?! ?(?:or|and|hundred|thousand|million|billion|trillion|percent)\b)[A-Za-z. ]*\}(?:\^\d)?)"
)
_MULTIPLES = {
    name: 10**zeros
    for name, zeros in (("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12))
}
_MULTIPLE = re.compile(rf"(.*?) ?(?:\\(?:text|mbox|mathrm|textrm)\{{ ?)?({'|'.join(_MULTIPLES)}) ?\}}?")
_FRACTION = re.compile(r"([+-]?)(\d*)\\frac\{([+-]?\d+)\}\{([+-]?\d+)\}")
_PLAIN_FRACTION = re.compile(r"([+-]?\d+)/(\d+)")
_DECIMAL = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d*)(?:\.(\d*))?")
_WORDS = re.compile(r"[A-Za-z]{2}[A-Za-z ]*[A-Za-z]")
_LETTER = re.compile(r"\(([A-Z])\)")


def canonical_answer(answer: str) -> str:
    r"""Returns the spelling under which `answer` is counted; empty if nothing remains. Idempotent.

    >>> [canonical_answer(a) for a in ("033", "$1,000$", "5.", "10,\\!080", r"\dfrac{2}{4}", "0.5", r"90^\circ")]
    ['33', '1000', '5', '10080', '1/2', '1/2', '90']
    >>> [canonical_answer(a) for a in (r"\left( 3, \frac{\pi}2 \right)", r"\text{Even}", r"\text{(C)}")]
    ['(3,\\frac{\\pi}{2})', 'even', 'C']
    """
    for _ in range(12):  # unwrapping may uncover something to rewrite; garbage may need forever
        if len(answer) > MAX_CHARS:
            break
        before, answer = answer, _pass(answer)
        if answer == before:
            return answer
    return answer.strip()


def canonical_number(text: str) -> str | None:
    r"""Returns `text` as an integer, a reduced `p/q` or a long decimal, or None if it is not plainly a number.

    >>> [canonical_number(text) for text in ("-007", "1,234.50", r"1\frac{4}{5}", "1,2", "x")]
    ['-7', '2469/2', '9/5', None, None]
    """
    decimal = _DECIMAL.fullmatch(text)
    if decimal and (decimal[2] or decimal[3]):
        whole, part = decimal[2].replace(",", "").lstrip("0"), (decimal[3] or "").rstrip("0")
        if not part:
            return ("-" if decimal[1] == "-" and whole else "") + (whole or "0")
        exact = f"{decimal[1].removeprefix('+')}{whole or 0}.{part}"
        return exact if len(part) > _MAX_PLACES else _exact(exact)
    if plain := _PLAIN_FRACTION.fullmatch(text):
        return _exact(f"{plain[1]}/{plain[2]}")
    if (latex := _FRACTION.fullmatch(text)) and len(text) <= _MAX_DIGITS and int(latex[4]):
        sign, whole, top, bottom = latex.groups()
        value = int(whole or 0) + Fraction(int(top), int(bottom))
        return str(-value if sign == "-" else value)
    return None


def _exact(text: str) -> str | None:
    if len(text) > _MAX_DIGITS:
        return None
    try:
        return str(Fraction(text))
    except ZeroDivisionError:
        return None


def _strip_end(text: str) -> str:
    """Strips punctuation from the end of a text, and the commands that LaTeX has for spaces."""
    while True:
        end = text.rstrip(".,;: \n")
        if end.endswith("\\") and not end.endswith("\\\\"):
            end = end[:-1]  # what was stripped behind it made it a space
        if end == text:
            return text
        text = end


def _pass(text: str) -> str:
    text = _strip_end(text.strip()).removesuffix("\\\\").strip()
    if wrapped := _WRAPPED.fullmatch(text):
        text = next(group for group in wrapped.groups() if group is not None).strip()
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    if (value := canonical_number(text)) is not None:
        return value
    if (counted := _MULTIPLE.fullmatch(text)) and (value := canonical_number(counted[1])) is not None:
        return str(Fraction(value) * _MULTIPLES[counted[2]])
    if (unit := _UNIT.fullmatch(text)) and (value := canonical_number(unit[1])) is not None:
        return value
    if letter := _LETTER.fullmatch(text):
        return letter[1]
    return text.casefold() if _WORDS.fullmatch(text) else text
