"""Formulas in texts: what is one, what is drawn, and that nothing but drawing comes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.runs.pages import tree_page
from reason.runs.pages.formulas import (
    ATTRIBUTES,
    MATHML,
    MAX_DEPTH,
    MAX_FORMULAS,
    MAX_JSON_CHARS,
    TAGS,
    convert_formula,
    convert_formulas,
)
from tests.support.browser import Opener, source_text
from tests.support.hidden_packages import hide_packages
from tests.support.search_records import solutions

PIECES = st.sampled_from([
    r"\frac", r"\sqrt", "{", "}", "^", "_", "x", "1", r"\left(", r"\right)", r"\begin{pmatrix}", r"\end{pmatrix}", "&",
    r"\\", r"\text", r"\href{javascript:alert(1)}", "<img>", r"\color{red}", r"\style{color:red}", r"\class{c}", "'",
    r"\newcommand", r"\def", r"\a", r"\unicode", r"\href", r"\boxed", "|", "$", r"\overline", "&lt;", "é", r"\kern",
    "\ud800", r"\begin{cases}", r"\end{cases}", r"\limits", r"\binom", r"\genfrac", "[", "]", r"\middle", r"\hspace",
])  # fmt: skip


def elements(markup: Any) -> Iterator[Any]:
    yield markup
    for child in markup[2] if isinstance(markup[2], list) else []:
        yield from elements(child)


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("$x$ and $y^2$.", ["$x$", "$y^2$"]),
        ("It costs $5, not $6 or $ 7 $.", []),
        ("It costs $5 and $x$", ["$x$"]),
        (r"a \(x\) b \[y\] c $$z$$", [r"\(x\)", r"\[y\]", "$$z$$"]),
        (r"The answer is \boxed{\frac{1}{2}}.", [r"\boxed{\frac{1}{2}}"]),
        (r"\begin{align*}a&=b\\c&=d\end{align*}", [r"\begin{align*}a&=b\\c&=d\end{align*}"]),
        (r"\$5\$ and \boxed{open", []),
        (r"$\frac$ is no formula", []),
    ],
)
def test_formulas_are_found_between_their_delimiters(text: str, sources: list[str]) -> None:
    assert list(convert_formulas([text])) == sources


def test_answers_are_formulas_where_they_have_a_command() -> None:
    assert list(convert_formulas([], [r"\frac{1}{2}", "7", "x"])) == [r"\frac{1}{2}"]


@given(st.lists(PIECES, max_size=30).map("".join))
def test_only_elements_that_draw_come_out(latex: str) -> None:
    markup = convert_formula(latex)
    for tag, attributes, content in elements(markup) if markup else ():
        assert tag in TAGS
        assert attributes.keys() <= ATTRIBUTES
        assert isinstance(content, str | list)
    assert not {"href", "style", "class", "id", "mathcolor"} & ATTRIBUTES
    assert "semantics" not in TAGS  # it may hold HTML


def test_a_page_holds_a_bounded_number_of_formulas() -> None:
    many = convert_formulas(f"$x_{i}$" for i in range(10_000))
    assert len(many) <= MAX_FORMULAS
    long = convert_formulas(f"${'x' * 500}_{i}$" for i in range(100))
    assert 0 < len(json.dumps(long)) <= MAX_JSON_CHARS
    assert convert_formula("x^{" * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)) is None
    definitions = r"\newcommand{\a}{\b\b}\newcommand{\b}{xx}\a"
    assert convert_formula(definitions) is None


def test_page_draws_formulas_and_has_their_source(visit: Opener) -> None:
    record = solutions((r"\frac{1}{2}", None), ("7", None))
    question = r"Find \[ \sum_{k=1}^{n} k \] if $x \ge \sqrt{2}$ holds."
    record["question"] = question
    page = visit(tree_page(record, None))
    assert page.locator("#question math").count() == 2
    assert page.evaluate("document.querySelector('#question msqrt').namespaceURI") == MATHML
    assert "".join(source_text(page, "#question").split()) == "".join(question.split())
    assert page.locator("#votes mfrac").count() == 1
    assert page.locator("#why mfrac").count() == 1
    drawn = page.locator("#question munderover").bounding_box()
    assert drawn is not None
    assert drawn["height"] > 20  # pixels: limits above and below, not in a row of text


def test_formula_of_a_hostile_text_only_draws(visit: Opener) -> None:
    hostile = r"$\href{javascript:window.hacked=1}{x}$ $\text{<img src=x onerror=window.hacked=1>}$ $<script>$"
    record = solutions(("7", None))
    record["question"] = hostile
    page = visit(tree_page(record, None))
    assert page.locator("#question :is(a, img, script, [href], [onerror])").count() == 0
    assert "<img src=x onerror=window.hacked=1>" in page.locator("#question").inner_text().replace("\xa0", " ")
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize(
    ("text", "strong", "code"),
    [
        ("## Step 1\nSo **the sum** is `a + b`.", ["## Step 1", "**the sum**"], ["`a + b`"]),
        ("**Answer: $x$** holds", ["**Answer: x**"], []),
        ("```python\n# no heading\nx = 2**3 + 4**5\n```\nend", [], ["```python\n# no heading\nx = 2**3 + 4**5\n```"]),
        ("2**3 + 4**5, ** no **, a `tick, #1 and\n```\nan open fence", [], []),
        ("**<img src=x onerror=window.hacked=1>**", ["**<img src=x onerror=window.hacked=1>**"], []),
    ],
)
def test_marks_of_markdown_are_faint_and_stay_in_the_text(
    visit: Opener, text: str, strong: list[str], code: list[str]
) -> None:
    record = solutions(("7", None))
    record["question"] = text
    page = visit(tree_page(record, None))
    assert page.locator("#question").text_content() == text.replace("$x$", "x")
    assert page.locator("#question strong").all_text_contents() == strong
    assert page.locator("#question code").all_text_contents() == code
    assert page.locator("#question img").count() == 0


@pytest.mark.parametrize(
    ("text", "formulas", "strong", "code"),
    [
        ("$2^{**}$ is not $3^{**}$", ["$2^{**}$", "$3^{**}$"], [], []),
        (r"$\text{`a'}$ or $\text{`b'}$", [r"$\text{`a'}$", r"$\text{`b'}$"], [], []),
        ("\\[ x =\n# 1 \\] holds", ["\\[ x =\n# 1 \\]"], [], []),
        ("**$2^{**}$ is even**", ["$2^{**}$"], ["**$2^{**}$ is even**"], []),
        ("## With \\[ a\n= b \\]\nand `$2^{**}$`", ["\\[ a\n= b \\]"], ["## With\\[ a\n= b \\]"], ["`$2^{**}$`"]),
        ("`price $1` or $y$ `2$`", ["$y$"], [], ["`price $1`", "`2$`"]),
    ],
)
def test_marks_of_markdown_in_a_formula_belong_to_it(
    visit: Opener, text: str, formulas: list[str], strong: list[str], code: list[str]
) -> None:
    record = solutions(("7", None))
    record["question"] = text
    page = visit(tree_page(record, None))
    drawn = [formula.get_attribute("title") for formula in page.locator("#question .math").all()]
    assert drawn == formulas
    assert "".join(source_text(page, "#question").split()) == "".join(text.split())
    count = page.locator("#question strong").count()
    assert [source_text(page, f"#question strong >> nth={i}") for i in range(count)] == strong
    assert page.locator("#question code").all_text_contents() == code


def test_page_without_the_converter_says_so(tmp_path: Path) -> None:
    code = (
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'latex2mathml' else found(name, package)\n"
        "from reason.runs.pages import tree_page\n"
        "print(tree_page({'nodes': [], 'question': '$x$'}, None))"
    )
    environment = hide_packages(tmp_path, "latex2mathml")
    page = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "latex2mathml is not installed" in page.stdout
    assert '"math":{}' in page.stdout
