"""What a wheel installs: one package, whose imports name one package, beside others with the names of our folders."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT, SCRIPTS

NAMESAKES = ("search", "conf", "decoding", "scripts")
COMMAND = (
    "import sys; sys.argv[0] = 'bin/reason'; from reason.commands.main import run_program; sys.exit(run_program())"
)
RUN = ["+task=synthetic", "search=rebase", "search.n=2", "search.sampling.max_tokens=24", "speculation=off"]


@pytest.fixture(scope="module")
def one_package() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS / "dev" / "wheel"))
    yield import_module("one_package")
    sys.path.pop(0)


@pytest.fixture(scope="module")
def packages(one_package: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: the stage of a wheel, and packages of other projects."""
    folder = tmp_path_factory.mktemp("packages")
    one_package.stage_package(ROOT, folder)
    for name in NAMESAKES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"NAME = 'other {name}'\n")
    return folder


def run(code: str, *arguments: str, path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def solve(packages: Path, folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Runs the command of the staged package."""
    return run(COMMAND, "solve", *settings, path=packages, folder=folder)


def test_only_reason_is_at_the_top(one_package: ModuleType, tmp_path: Path) -> None:
    one_package.stage_package(ROOT, tmp_path)
    assert {entry.name for entry in tmp_path.iterdir() if entry.is_dir()} == {"reason"}
    assert not list(tmp_path.rglob("__pycache__"))
    for name in ("search", "decoding", "conf"):
        here = {str(file.relative_to(ROOT / name)) for file in (ROOT / name).rglob("*") if is_source(file)}
        assert here == {
            str(file.relative_to(tmp_path / "reason" / name))
            for file in (tmp_path / "reason" / name).rglob("*")
            if file.is_file()
        }


def is_source(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".pyc", ".nbi", ".nbc")


def test_no_import_of_the_stage_names_a_folder_of_the_repository(packages: Path) -> None:
    for file in (packages / "reason").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert not {name.partition(".")[0] for name in names} & set(NAMESAKES), f"{file}:{names}"


def test_the_stage_is_used_beside_packages_of_the_same_names(packages: Path, tmp_path: Path) -> None:
    code = (
        "import reason, search, conf, decoding, scripts\n"
        "from reason.search.strategies.rebase import Rebase\nfrom reason.decoding.core import SamplingParams\n"
        "import sys\nfrom reason.settings.validate import validate_settings\n"
        "from reason.config.compose import compose_settings\n"
        "spec = validate_settings(*compose_settings(['search=rebase']))\n"
        "print(reason.__file__, search.NAME, conf.NAME, decoding.NAME, scripts.NAME, type(spec.strategy) is Rebase)\n"
        "assert not {'search.tree', 'decoding.core'} & set(sys.modules)\n"
    )
    done = run(code, path=packages, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(None, 1) == [
        str(packages / "reason" / "__init__.py"),
        "other search other conf other decoding other scripts True\n",
    ]


def test_runs_of_a_checkout_and_of_a_wheel_finish_each_other(packages: Path, tmp_path: Path) -> None:
    script = [sys.executable, str(SCRIPTS / "solve.py")]
    first = solve(packages, tmp_path, *RUN, "limit=1", "hydra.run.dir=wheel")
    assert first.returncode == 0, first.stderr
    subprocess.run([*script, *RUN, "limit=1", "hydra.run.dir=checkout"], cwd=tmp_path, capture_output=True, check=True)
    saved = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("wheel", "checkout")]
    assert saved[0]["config"] == saved[1]["config"]
    assert [one["command"].split(" +")[0] for one in saved] == ["reason solve", "python scripts/solve.py"]
    trees = [next((tmp_path / name / "trees").iterdir()) for name in ("wheel", "checkout")]
    assert len({json.loads(tree.read_text())["strategy"]["_target_"] for tree in trees}) == 1

    by_wheel = solve(packages, tmp_path, "resume=checkout", "limit=2")
    assert by_wheel.returncode == 0, by_wheel.stderr
    resumed = [*script, "resume=wheel", "limit=2"]
    by_checkout = subprocess.run(resumed, cwd=tmp_path, capture_output=True, text=True, check=True)
    for done in (by_wheel, by_checkout):
        summary = json.loads(done.stdout.splitlines()[-1])
        assert (summary["resumed"], summary["problems"], summary["errors"]) == (1, 2, 0)


def test_plug_in_of_the_examples_works_with_the_stage(packages: Path, tmp_path: Path) -> None:
    plug_in = ["--config-dir", str(ROOT / "examples" / "settings"), f"plugins=[{ROOT}/examples/add_a_strategy.py]"]
    settings = ["search=above_average", "search.n=2", "limit=1", "+task=synthetic", "speculation=off"]
    done = solve(packages, tmp_path, *plug_in, *settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["search"] == "above_average"


def test_plug_in_with_names_of_a_checkout_is_told_those_of_a_wheel(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "plug_ins").mkdir()  # Python finds modules of the present folder without us
    (tmp_path / "plug_ins" / "mine.py").write_text("from search.ours import LevelSearch\n")
    done = solve(packages, tmp_path, "plugins=[plug_ins/mine.py]", "question=1")
    assert done.returncode == 2
    assert done.stderr.endswith("(No module named 'search.ours'; write reason.search...)\n")


@pytest.mark.parametrize(
    ("source", "rewritten"),
    [
        ("from search.tree import Node\n", "from reason.search.tree import Node\n"),
        ("from search import tree as t, kv\n", "from reason.search import tree as t, kv\n"),
        (
            "from search.tree import (  # search.tree\n    Node,\n)\n",
            "from reason.search.tree import (  # search.tree\n    Node,\n)\n",
        ),
        ("import os, decoding.core as core\n", "import os, reason.decoding.core as core\n"),
        ("def f():\n    from  decoding import core\n", "def f():\n    from  reason.decoding import core\n"),
        ("é = 1; from conf import x\n", "é = 1; from reason.conf import x\n"),
        ("from reason.search import tree\nfrom searching import x\n", None),
        ("from .tree import Node\nfrom . import search\n", None),
        (
            '"""See `search.tree`."""\nsearch = {"search.n": 4}\nsearch.get("search")  # from search.tree import x\n',
            None,
        ),
        ("text = 'from search.n import x'\n", None),
    ],
)
def test_imports_are_rewritten_and_nothing_else(one_package: ModuleType, source: str, rewritten: str | None) -> None:
    result = one_package.prefix_imports(source, "x.py", ROOT)
    assert result == (source if rewritten is None else rewritten)
    assert one_package.prefix_imports(result, "x.py", ROOT) == result


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import search.tree\n", "x.py:1: import search.tree binds a name that a wheel has not"),
        ("import os, search\n", "x.py:1: import search binds a name"),
        ("from \\\n  search.tree import Node\n", "x.py:1: write from ... import on one line"),
        ("load('search.tree.Node')\n", "x.py:1: 'search.tree.Node' is a module"),
        ("f'{x} decoding.core'\n", "x.py:1: 'decoding.core' is a module"),
        ("files('conf')\n", "x.py:1: files needs reason.conf"),
        ("importlib.import_module('search')\n", "x.py:1: import_module needs reason.search"),
        ("main(config_path='pkg://conf')\n", "x.py:1: 'pkg://conf' is a module"),
    ],
)
def test_what_the_build_does_not_understand_fails_it(one_package: ModuleType, source: str, message: str) -> None:
    with pytest.raises(one_package.RewriteError) as refused:
        one_package.prefix_imports(source, "x.py", ROOT)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("line", ["class: search.log.File", "  (): decoding.x.Filter", "- pkg://conf"])
def test_yaml_that_names_an_inner_package_fails_the_build(one_package: ModuleType, line: str) -> None:
    with pytest.raises(one_package.RewriteError):
        one_package.check_yaml(f"a: 1\n{line}\n", "x.yaml")
    one_package.check_yaml("_target_: search.steps.DelimiterSteps\nn: ${search.n}\n- search: ets\n", "x.yaml")


def test_entry_point_without_the_prefix_fails_the_build(one_package: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    shutil.copy(ROOT / "pyproject.toml", file)
    one_package.check_entry_points(file)
    file.write_text(file.read_text().replace('"reason.decoding.sglang', '"decoding.sglang'))
    with pytest.raises(one_package.RewriteError, match="must begin with reason"):
        one_package.check_entry_points(file)


def test_folder_in_the_place_of_an_inner_package_fails_the_build(one_package: ModuleType, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("reason", "search", "decoding", "conf"):
        (home / name).mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, home / name)
    (home / "reason" / "conf.py").write_text("")
    (tmp_path / "stage").mkdir()
    with pytest.raises(one_package.RewriteError, match="reason/conf is the place of conf/ in a wheel"):
        one_package.stage_package(home, tmp_path / "stage")
