"""A notebook shows a solution as the page of its search."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import unescape
from types import ModuleType, SimpleNamespace

import pytest

from reason.problem import Solution
from reason.runs.notebook import frame_solution, register_display
from tests.support.toy_solver import toy_solver


def make_ipython(shell: object) -> ModuleType:
    module = ModuleType("IPython")
    vars(module)["get_ipython"] = lambda: shell
    return module


def test_frame_has_the_whole_page_and_no_text_of_it_acts_as_part_of_the_frame() -> None:
    with toy_solver() as one:
        shown = frame_solution(one.solve('What is <"3">?'))
    begin, _, rest = shown.partition('srcdoc="')
    page, _, end = rest.partition('"')
    assert begin == "<iframe "
    assert end.startswith(" style=")
    assert unescape(page).startswith("<!doctype html>")
    assert 'What is \\u003c\\"3\\"\\u003e?' in unescape(page)


def test_solutions_are_registered_where_a_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[type, Callable[[Solution], str]] = {}
    html = SimpleNamespace(for_type=shown.__setitem__)
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": html}))
    monkeypatch.setitem(sys.modules, "IPython", make_ipython(shell))
    register_display()
    assert shown == {Solution: frame_solution}


@pytest.mark.parametrize("ipython", [None, make_ipython(None)])
def test_elsewhere_nothing_is_registered(monkeypatch: pytest.MonkeyPatch, ipython: ModuleType | None) -> None:
    if ipython is None:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "IPython", ipython)  # imported by a program that is no notebook
    register_display()
