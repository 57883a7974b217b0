r"""Finds the final answer in a text.

All functions are pure, take time linear in the text and accept any string.
"""

from __future__ import annotations

import re

from reason.grading.canonical import canonical_answer as canonical_answer  # one place to import both halves from

_BOX = r"\\(?:boxed|fbox|framebox)"
_FIRST_BOX = re.compile(_BOX)
_TOKEN = re.compile(
    rf"(?P<open>{_BOX}\s*\{{)"
    rf"|{_BOX}(?:\s*(?P<bare>[-+]?\.?\d[^\s{{}}$\\]*)|\s+(?P<letter>[A-J])(?![A-Za-z]))"
    r"|(?P<escaped>\\[{}]|\\\\(?!boxed|fbox|framebox))"
    r"|(?P<left>\{)|(?P<right>\})"
)
_STATED = re.compile(
    r"\b[Aa]nswer\s*(?:is|:)[\s:*]*"
    # no space before the closing dollar of what begins with a digit: else two amounts of money are a formula
    r"(?:\$(?P<math>\s[^$\n]{1,199}|[^$\s\d][^$\n]{0,199}|\d(?:[^$\n]{0,198}[^$\s])?)\$"
    # not the first number of a formula: 5x^2 + 3 is not 5
    r"|(?P<number>[-+]?\$?\.?\d(?:[,./]*\d)*+)(?![ \t]?[A-Za-z]?[ \t]?\^|[A-Za-z][ \t]?[-+=][ \t]?\d))"
)
_NUMBER_LINE = re.compile(r"[-+]?\$?\.?\d[\d,./]*%?")
_LETTER_FIRST = re.compile(r"\(?([A-J])(?:\)|[.:,\s]|$)")
_LETTER_STATED = re.compile(
    r"(?:[Aa]nswer|ANSWER|[Cc]hoice|[Oo]ption)\s*+"
    r"(?:is\b|:|(?!I\s(?!is\b)[a-z]))"  # no letter but a pronoun: the answer I get
    r"[\s:*$(]*(?:\\text\w*\{\(?)?([A-J])(?![\w'])"
)
_LETTER_LINE = re.compile(r"[*(\s]*([A-J])[*).\s]*")


def boxed_content(text: str) -> str | None:
    r"""Returns the content of the last non-empty `\boxed{...}` (or `\fbox`, `\framebox`, `\boxed 5`), or None.

    Braces must balance; a box that never closes does not count. Of nested boxes the inner one wins.

    >>> boxed_content(r"so \boxed{\frac{1}{2}}, no wait: \boxed{\{1,2\}}")
    '\\{1,2\\}'
    >>> boxed_content(r"put it in \boxed{}"), boxed_content(r"\boxed{12")
    (None, None)
    """
    first = _FIRST_BOX.search(text)
    if first is None:
        return None
    best: tuple[int, int] | None = None  # half-open range of the content that starts last
    open_at: list[int | None] = []  # where the content of each open brace starts; None for braces that are no box
    for token in _TOKEN.finditer(text, first.start()):
        kind = token.lastgroup
        answer_span: tuple[int, int] | None = None
        if kind == "open":
            open_at.append(token.end())
        elif kind == "left":
            open_at.append(None)
        elif kind == "right" and open_at:
            start = open_at.pop()
            answer_span = None if start is None else (start, token.start())
        elif kind in ("bare", "letter"):
            answer_span = token.span(kind)
        if answer_span and (best is None or answer_span[0] > best[0]) and text[slice(*answer_span)].strip():
            best = answer_span
    return text[slice(*best)].strip() if best else None


def find_answer(text: str) -> str | None:
    r"""Returns the final answer as written: the last box, else what follows the last `####` or "the answer is".

    A line with `####` that is no number is a heading where an answer is stated below it.

    >>> find_answer(r"3 + 4 = \boxed{7}"), find_answer("... 18.\n#### 1,800"), find_answer("The answer is $x^2$.")
    ('7', '1,800', 'x^2')
    >>> find_answer("#### Step 2\nThe answer is 5."), find_answer("The answer is $18 per day, $2 each.")
    ('5', '$18')
    >>> find_answer("I am still thinking about 5"), find_answer("The answer is $ $")
    (None, None)
    """
    if (box := boxed_content(text)) is not None:
        return box
    _, marker, rest = text.rpartition("####")
    line = rest.strip().partition("\n")[0].strip() if marker else ""
    if _NUMBER_LINE.fullmatch(line):
        return line
    stated = _last(_STATED, rest)
    if line and stated is None:
        return line
    stated = stated or _last(_STATED, text)
    return ((stated["math"] or stated["number"]).strip() or None) if stated else None


def find_letter(text: str) -> str | None:
    r"""Returns the chosen letter (A to J) of a multiple-choice question: boxed, stated, or alone on the last line.

    >>> find_letter(r"\boxed{\text{(C)}}"), find_letter("The answer is **B**."), find_letter("...\n(D)")
    ('C', 'B', 'D')
    """
    box = boxed_content(text)
    if box is not None and (inside := _LETTER_FIRST.match(canonical_answer(box))):
        return inside[1]
    if stated := _last(_LETTER_STATED, text):
        return stated[1]
    line = _LETTER_LINE.fullmatch(text.strip().rpartition("\n")[2][:40])
    return line[1] if line else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for match in pattern.finditer(text):  # noqa: B007 - only the last match is needed
        pass
    return match
