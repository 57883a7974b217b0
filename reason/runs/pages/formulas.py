"""Finds LaTeX formulas in texts and converts them to MathML, which browsers draw without a network or fonts of ours.

A formula becomes plain data, [tag, attributes, children or text], of tags and attributes that only draw: the texts are
written by models, and the page builds the elements from it without parsing any text as HTML.
"""

from __future__ import annotations

import html
import importlib.util
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from xml.etree.ElementTree import Element

MATHML = "http://www.w3.org/1998/Math/MathML"
MAX_FORMULAS = 400
MAX_JSON_CHARS = 100_000
MAX_DEPTH = 60
TAGS = frozenset((
    "math", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup",
    "munder", "mover", "munderover", "mmultiscripts", "none", "mprescripts", "mtable", "mtr", "mtd", "mstyle",
    "mpadded", "mphantom", "menclose",
))  # fmt: skip
ATTRIBUTES = frozenset((
    "accent", "accentunder", "columnalign", "columnlines", "columnspacing", "depth", "display", "displaystyle", "fence",
    "form", "height", "largeop", "linethickness", "lspace", "mathvariant", "maxsize", "minsize", "movablelimits",
    "notation", "rowlines", "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset",
    "width",
))  # fmt: skip

Markup = list[object]
"""[tag, attributes, children or text]."""

_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]{0,300}\}){0,300}\}){0,300}\}"
_FORMULA = re.compile(
    r"\\\[(?P<square>.{1,1500}?)\\\]"
    r"|\$\$(?P<double>[^$]{1,1500})\$\$"
    r"|\\\((?P<round>.{1,600}?)\\\)"
    # a dollar before a number is a price, unless a dollar that touches the text closes it
    r"|(?<![\\$])\$(?P<single>(?![\s$])[^$\n]{0,600}?[^\s$\\])\$(?![\d$])"
    r"|(?P<environment>\\begin\{(?P<name>[a-z]{1,12}\*?)\}.{1,1500}?\\end\{(?P=name)\})"
    rf"|(?P<boxed>\\boxed{_BRACES})",
    re.DOTALL,
)
_DEFINITION = re.compile(r"\\(?:(?:re|provide)?newcommand|[egx]?def|let|Declare)")
"""Commands that define commands: a few lines of them can grow without bound."""

_BLOCKS = ("square", "double", "environment")


@cache
def can_convert() -> bool:
    """Returns whether latex2mathml is installed: pages of a machine without it say so and show LaTeX."""
    return importlib.util.find_spec("latex2mathml") is not None


def convert_formulas(texts: Iterable[str], whole: Iterable[str] = ()) -> dict[str, Markup]:
    """Returns the MathML of each formula in the texts by its source, delimiters included, the first ones if many.

    `whole` are texts that are formulas without delimiters, such as answers: those with a command are converted. A
    formula that cannot be converted is left out, and so shown as it was written.

    >>> convert_formulas(["So $x$ costs $5, and $6 too."])
    {'$x$': ['math', {'display': 'inline'}, [['mrow', {}, [['mi', {}, 'x']]]]]}
    """
    formulas: dict[str, Markup] = {}
    if not can_convert():
        return formulas
    size = 0
    for source, latex, is_block in _find_all(texts, whole):
        if source in formulas:
            continue
        markup = convert_formula(latex, is_block)
        if markup is None:
            continue
        size += len(json.dumps([source, markup]))
        if size > MAX_JSON_CHARS or len(formulas) >= MAX_FORMULAS:
            break
        formulas[source] = markup
    return formulas


def convert_formula(latex: str, is_block: bool = False) -> Markup | None:
    """Returns the MathML of one formula; None if it cannot be converted. Raises: ImportError without latex2mathml."""
    from latex2mathml import converter  # takes a moment, and only pages need it

    if _DEFINITION.search(latex):
        return None
    try:
        element = converter.convert_to_element(latex, display="block" if is_block else "inline")
        return _to_markup(element)
    except _conversion_errors():
        return None


@cache
def _conversion_errors() -> tuple[type[Exception], ...]:
    """Returns what the converter raises on texts that are no formulas: its errors have no base class of their own."""
    from latex2mathml import exceptions

    named = [error for _, error in inspect.getmembers(exceptions, inspect.isclass)]
    return (*named, RuntimeError, StopIteration, LookupError, ValueError, TypeError, AttributeError)


def _find_all(texts: Iterable[str], whole: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Yields (source, LaTeX, whether it is set on lines of its own)."""
    for text in whole:
        if "\\" in text and len(text) <= 600:
            yield text, text, False
    for text in texts:
        for match in _FORMULA.finditer(text):
            kind = match.lastgroup if match["name"] is None else "environment"
            assert kind is not None
            yield match[0], match[kind], kind in _BLOCKS


def _to_markup(element: Element, depth: int = 0) -> Markup:
    """Returns an element as plain data. Raises: ValueError for a tag that does more than draw, or too deep."""
    if element.tag not in TAGS or depth > MAX_DEPTH:
        raise ValueError(element.tag)
    attributes = {name: value for name, value in element.attrib.items() if name in ATTRIBUTES}
    children = [_to_markup(child, depth + 1) for child in element]
    return [element.tag, attributes, children or html.unescape(element.text or "")]
