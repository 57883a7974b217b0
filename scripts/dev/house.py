"""Print how readable the code is, in numbers: `python scripts/dev/house.py [FOLDER ...]`.

Counts the Python files below the four packages (or the folders given); tests are counted apart.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("reason", "search", "decoding", "scripts")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
ONE_FILE_EACH = (
    "strategies",
    "acceptance",
    "controllers",
    "drafters",
    "routing",
    "formats",
    "tasks",
    "scorers",
    "bench",
)
"""Folders of options: one file per option, however short, is what makes a new option two files."""
SHORT_FOR_A_REASON = {
    "decoding/model/reward_heads.py": "imported alone by SGLang's processes",
    "reason/config/versions.py": "read by runs and by benchmarks, belongs to neither",
}
HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def definitions(tree: ast.AST) -> Iterator[Definition]:
    """Functions, methods and classes, special methods left out."""
    for node in ast.walk(tree):
        if isinstance(node, Definition) and not node.name.startswith("__"):
            yield node


def is_one_word(name: str) -> bool:
    """Whether a name is a single word: neither two parts joined by `_` nor two capitalised humps."""
    return len(HUMPS.findall(name)) <= 1


def python_files(folders: Sequence[str]) -> list[Path]:
    """Every Python file below the folders, in order."""
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def public_classes(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Files that define each public class on their top level, by class name."""
    files_by_name = defaultdict(list)
    for file in files:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files_by_name[node.name].append(file.relative_to(ROOT))
    return files_by_name


def comments_per_100_lines(files: Sequence[Path]) -> float:
    """Comments of any kind per 100 lines."""
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return 100 * sum(bool(re.search(r"(^|\s)#\s", line)) for line in lines) / max(1, len(lines))


def short_files(lengths: dict[Path, int]) -> list[Path]:
    """Files under 40 lines that are neither options, nor SGLang's names on a CPU, nor short for a written reason."""
    return [
        file.relative_to(ROOT)
        for file, lines in lengths.items()
        if lines < 40
        and file.name != "__init__.py"
        and file.parent.name not in ONE_FILE_EACH
        and "cpu_stand_ins" not in file.parts
        and str(file.relative_to(ROOT)) not in SHORT_FOR_A_REASON
    ]


def frames_and_types() -> str:
    """What the frame test counts between `Solver.solve` and the forward pass, for two searches."""
    command = [sys.executable, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", "tests/test_frames.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    lines = re.findall(r"^\w+: \d+ frames, \d+ types$", done.stdout, re.MULTILINE)
    return "; ".join(lines) or "not measured: tests/test_frames.py fails"


def report(folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is counted and its value, one pair per printed line."""
    files = python_files(folders)
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    lengths = {file: len(text.splitlines()) for file, text in texts.items()}
    names = [node.name for text in texts.values() for node in definitions(ast.parse(text))]
    longest = max(lengths, key=lambda file: lengths[file])
    short = short_files(lengths)
    twice = [name for name, where in public_classes(files).items() if len(where) > 1]
    words = Counter(word for text in texts.values() for word in re.findall(r"\bAny\b", text))
    yield "files", f"{len(files)}"
    yield "lines", f"{sum(lengths.values()):,}"
    yield "median file", f"{statistics.median(lengths.values()):.0f} lines"
    yield "longest file", f"{lengths[longest]} lines, {longest.relative_to(ROOT)}"
    yield "files under 40 lines", f"{len(short)} without a reason {' '.join(map(str, short))}"
    yield "one-word definitions", f"{100 * sum(map(is_one_word, names)) / len(names):.0f} % of {len(names)}"
    yield "class names defined twice", f"{len(twice)} {' '.join(sorted(twice))}"
    yield "Any", f"{words['Any']}"
    if tuple(folders) == PACKAGES:
        decoding = comments_per_100_lines(python_files(["decoding"]))
        tests = python_files(["tests"])
        functions = sum(n.name.startswith("test_") for f in tests for n in definitions(ast.parse(f.read_text())))
        yield "comments in decoding/", f"{decoding:.1f} per 100 lines"
        yield "from solve to forward", frames_and_types()
        yield "modules on top of reason/", f"{len(list((ROOT / 'reason').glob('*.py')))}"
        yield "README", f"{len((ROOT / 'README.md').read_text(encoding='utf-8').splitlines())} lines"
        yield "test functions", f"{functions} in {len(tests)} files"


def main() -> None:
    for what, value in report(tuple(sys.argv[1:]) or PACKAGES):
        print(f"{what:28} {value}")


if __name__ == "__main__":
    main()
