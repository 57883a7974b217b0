"""One idea has one word: class names are unique, and words of the old dialect do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import CONF, ROOT

PACKAGES = ("decoding", "search", "reason", "scripts", "tests")
BANNED = {
    "guess": "draft",
    "guesser": "drafter",
    "guesses": "drafts",
    "guessed": "drafted",
    "guessing": "speculation",
    "coin": "uniform random number",
    "coins": "uniform stream",
    "leftover": "residual",
    "rehearsal": "warm-up profile",
    "who": "the thing that acts",
    "whoever": "the thing that acts",
    "whom": "the thing that is acted on",
    "somebody": "the thing that acts",
    "nobody": "no request, no branch, no server",
    "everybody": "all requests, all branches",
    "untold": "not reported",
    "knock": "ping",
    "errand": "request",
    "fleet": "launcher",
    "contender": "drafter setup",
    "contenders": "drafter setups",
    "contestant": "baseline",
    "contestants": "baselines",
    "crossroads": "routing context",
    "complaints": "errors",
    "readout": "probabilities",
}
"""Banned words, and the words of the field that replace them (docs/glossary.md)."""

BARE = {"found", "kept", "asked", "seen", "said", "told", "own", "wanted"}
"""Participles that are no name by themselves: `kept_leaves`, not `kept`."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def source_files() -> list[Path]:
    """Every Python file of the packages; SGLang stand-ins follow SGLang's names, and this file lists the words."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return sorted(file for file in files if "cpu_stand_ins" not in file.parts and file != Path(__file__))


def words(text: str) -> set[str]:
    """The words of a text or an identifier, in lower case, split at `_` and at capitals."""
    return {match.lower() for match in WORD.findall(text)}


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a file defines or binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def prose(source: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings (of attributes too) and comments, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("package", PACKAGES)
def test_banned_words_are_absent_from_names_docstrings_and_comments(package: str) -> None:
    errors = []
    for file in source_files():
        if file.relative_to(ROOT).parts[0] == package:
            source = file.read_text(encoding="utf-8")
            tree = ast.parse(source)
            for line, text in (*identifiers(tree), *prose(source, tree)):
                errors += [
                    f"{file.relative_to(ROOT)}:{line}: {word!r}; write {BANNED[word]!r}"
                    for word in sorted(words(text) & BANNED.keys())
                ]
    assert not errors, "\n".join(errors)


def test_no_name_is_a_participle_without_its_noun() -> None:
    bare = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in source_files()
        for line, name in identifiers(ast.parse(file.read_text(encoding="utf-8")))
        if name in BARE
    ]
    assert not bare, "\n".join(bare)


def test_banned_words_are_absent_from_settings() -> None:
    errors = [
        f"{file.relative_to(ROOT)}:{number}: {word!r}; write {BANNED[word]!r}"
        for file in sorted(CONF.rglob("*.yaml"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for word in sorted(words(line) & BANNED.keys())
    ]
    assert not errors, "\n".join(errors)


def test_every_public_class_name_is_defined_once() -> None:
    where = defaultdict(list)
    for file in source_files():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(file.relative_to(ROOT)))
    twice = {name: files for name, files in where.items() if len(files) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(files)}" for name, files in sorted(twice.items()))
