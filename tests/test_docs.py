"""Commands, settings, paths and code in the documentation are valid."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from reason.commands.names import COMMANDS, list_benches
from reason.commands.solve import quote_question
from reason.config.compose import compose_settings
from reason.settings.validate import validate_settings
from tests.support.paths import CONF, ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
COMMAND = re.compile(r"^(?:python scripts/[\w/]+\.py|reason [a-z-]+).*$", re.MULTILINE)
SOLVING = ("python scripts/solve.py ", "reason solve ", "reason sweep ")
SERVING = ("python scripts/serve_models.py ", "reason serve-models ")
NOT_AT_HAND = ("FOLDER", "model=", "scorer=", "routers/mine", "+experiment=paper_")
"""Settings with these name models that a test has not; they are composed and no more."""
REPLY_KEYS = {"search.lossy", "search.usage"}
"""Keys of a reply of the HTTP endpoint that look like settings."""


def loaded(file: Path) -> ModuleType:
    """A file that is in no package, as a module."""
    spec = importlib.util.spec_from_file_location(f"documented_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands() -> list[str]:
    lines = {match[0].partition("  ")[0].strip() for page in PAGES for match in COMMAND.finditer(page.read_text())}
    return sorted(lines)


def solving() -> list[str]:
    return [line for line in commands() if f"{line} ".startswith(SOLVING) and "resume=" not in line]


def arguments_of(line: str) -> list[str]:
    """The settings of a documented command, without its first two words."""
    return shlex.split(line, comments=True)[2:] + ["-m"] * line.startswith("reason sweep")


def chosen(arguments: list[str]) -> list[str]:
    """The settings of the first job of a sweep; Hydra's config folder becomes a setting."""
    settings, sweep = [], {"-m", "--multirun"} & set(arguments)
    rest = iter(arguments)
    for argument in rest:
        if argument == "--config-dir":
            settings.append(f"hydra.searchpath=[file://{ROOT / next(rest)}]")
        elif not argument.startswith(("-", "hydra")):
            settings.append(argument.partition(",")[0] if sweep and "[" not in argument else argument)
    return settings


def test_documentation_has_commands_to_check() -> None:
    assert len(solving()) > 12
    named = {re.split(r"[/ .]", line.removeprefix("python scripts/").removeprefix("reason "))[0] for line in commands()}
    assert {"report", "serve", "doctor"} <= named
    assert named & {"train_router", "train-router"}


@pytest.mark.parametrize("line", commands())
def test_every_documented_command_exists(line: str) -> None:
    program, name, *arguments = shlex.split(line, comments=True)
    if program == "python":
        assert (ROOT / name).is_file()
    else:
        assert name in COMMANDS
        assert name != "bench" or arguments[:1] == [] or arguments[0] in list_benches()


@pytest.mark.parametrize("line", solving())
def test_every_documented_setting_is_valid(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = quote_question(arguments_of(line))
    config, choices = compose_settings(chosen(arguments))
    if not any(name in line for name in NOT_AT_HAND):
        validate_settings(config, choices)


@pytest.mark.parametrize("line", [line for line in commands() if f"{line} ".startswith(SERVING)])
def test_every_documented_server_setting_is_valid(line: str) -> None:
    compose_settings(arguments_of(line), "serve_models")


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=lambda page: str(page.name))
def test_python_blocks_of_pages_compile(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        compile(block, page.name, "exec")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return loaded(ROOT / "docs" / "hooks.py")


def test_settings_page_has_every_option_with_its_comment(hooks: ModuleType) -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for file in (ROOT / "conf").glob("*/*.yaml"):
        assert f"\n### {file.stem}\n" in page
    assert "Every step, distribute n continuations by softmax of the branches' scores (REBASE" in page


def test_written_pages_are_those_of_today(hooks: ModuleType) -> None:
    """Else: python docs/hooks.py"""
    for page, text in hooks.written_pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name} is old: run python docs/hooks.py"


def test_list_of_the_library_names_methods_with_their_parameters(hooks: ModuleType) -> None:
    rows = hooks.rows_of("reason.solver.Solver")
    assert any(row.startswith("| `Solver.solve(") for row in rows)
    grading = "| `Task.grade_text(problem, text)` | Grades a whole solution"
    assert any(row.startswith(grading) for row in hooks.rows_of("reason.tasks.base.Task"))
    assert hooks.rows_of("reason.build.load")[0].endswith("for the options and settings of the command line. |")


def test_benchmark_page_has_every_report(hooks: ModuleType) -> None:
    page = hooks.on_page_markdown("{{ benchmarks }}", None)
    reports = list((ROOT / "benchmarks").glob("*.md"))
    assert len(reports) == len(re.findall(r"```\n(?:python scripts/|reason bench )", page))
    assert all(f"`benchmarks/{report.name}`" in page for report in reports)


def test_every_glossary_term_names_a_class_or_a_file() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    named = {name for _, where in rows[1:] for name in re.findall(r"`([^`]+)`", where)}
    sources = [
        file.read_text() for package in ("decoding", "search", "reason") for file in (ROOT / package).rglob("*.py")
    ]
    classes = {name for source in sources for name in re.findall(r"^class (\w+)", source, re.MULTILINE)}
    assert len(rows) > 40
    missing = {name for name in named if name not in classes and not (ROOT / name).is_file()}
    assert not missing


def test_readme_fits_a_page_and_maps_the_first_two_folder_levels() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    plan = text.partition("## The house")[2]
    for package in ("scripts", "reason", "search", "decoding"):
        for entry in (ROOT / package).iterdir():
            if not entry.name.startswith("_") and entry.suffix in ("", ".py"):
                assert re.search(rf"\b{re.escape(entry.stem)}\b", plan), f"{package}/{entry.name} is not on the map"


def test_every_documented_path_exists() -> None:
    for page in (page for page in PAGES if page.suffix == ".md"):
        for path in re.findall(
            r"`((?:decoding|search|reason|scripts|conf|docs|examples|tests)/[\w./-]+)`", page.read_text()
        ):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_every_promise_names_a_test_that_exists() -> None:
    rows = re.findall(r"`(tests/[\w/]+\.py)((?:::\w+)*)` \|$", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
    assert len(rows) > 50
    for file, names in rows:
        source = (ROOT / file).read_text()
        for name in names.split("::")[1:]:
            assert re.search(rf"(?:def|class) {name}\b", source), f"{file}::{name}"


def test_every_object_of_the_library_page_exists_with_its_members() -> None:
    blocks = (ROOT / "docs" / "library.md").read_text().split("::: ")[1:]
    assert len(blocks) > 12
    for block in blocks:
        documented = pkgutil.resolve_name(block.split()[0])
        for names in re.findall(r"members: \[(.*)\]", block):
            assert all(hasattr(documented, name) for name in names.split(", ")), block


def dotted_names(node: Mapping[str, object], prefix: str) -> Iterator[str]:
    """The dotted name of every key of a nested mapping."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from dotted_names(value, f"{prefix}{key}.")


def known_settings() -> set[str]:
    """The dotted name of every setting of every option in conf/."""
    names: set[str] = set()
    for file in CONF.rglob("*.yaml"):
        settings = OmegaConf.to_container(OmegaConf.load(file))
        if isinstance(settings, dict):
            group = file.parent.name
            homes = {"engine": ["engine.", "small."], "sampling": ["search.sampling."], "conf": [""]}
            homes["thinking"] = ["model.thinking."]
            plain = {str(key): value for key, value in settings.items()}
            for prefix in homes.get(group, [f"{group}."]):
                names.update([*dotted_names(plain, prefix), prefix.removesuffix(".")])
            if group == "model":
                names.update(dotted_names(plain.get("sampling", {}), "search.sampling."))
    return names


def test_every_documented_setting_exists() -> None:
    known = known_settings()
    groups = "|".join(sorted({name.partition(".")[0] for name in known if "." in name} - {"hydra"}))
    setting = re.compile(rf"(?<![\w./])(?:{groups})\.[a-z_.]*[a-z](?![\w/(]|\.\w)")
    # settings.md is the yamls themselves, whose text is not quoted in backticks
    for page in (page for page in PAGES if page.suffix == ".md" and page.name != "settings.md"):
        named = {name for span in re.findall(r"`([^`]+)`", page.read_text()) for name in setting.findall(span)}
        unknown = {name for name in named if not (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()}
        unknown = {name for name in unknown if not name.endswith((".md", ".py"))} - known - REPLY_KEYS
        assert not unknown, page.name
