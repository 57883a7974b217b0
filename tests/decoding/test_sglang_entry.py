"""What the plug-in takes from SGLang is checked before it is touched: with modules in SGLang's place."""

from __future__ import annotations

import argparse
import ast
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from decoding.sglang_plugin import OUR_ALGORITHMS, entry
from decoding.sglang_plugin.draft_hooks import ALL_HOOKS
from decoding.sglang_plugin.hooks import TESTED
from decoding.sglang_plugin.settings import VARIABLES
from tests.support.paths import ROOT

PLUGIN = ROOT / "decoding" / "sglang_plugin"
REGISTERED = "sglang.srt.speculative.spec_info"


class ServerArgs:
    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--theirs")


class CustomSpecAlgo:
    def __init__(self, name: str, factory: object, *, supports_overlap: bool = False) -> None:
        self.name, self.factory, self.supports_overlap = name, factory, supports_overlap

    def is_ngram(self) -> bool:
        return False

    is_standalone = is_eagle = is_eagle3 = has_draft_kv = is_ngram

    def handle_server_args(self, server_args: object) -> None:
        pass


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules in the place of SGLang's, with what is needed to register; the algorithms that were registered."""
    registered: dict[str, Any] = {}

    class SpeculativeAlgorithm:
        @classmethod
        def register(cls, name: str, *, supports_overlap: bool = False, spec_class: type = CustomSpecAlgo) -> Any:
            return lambda factory: registered.setdefault(name, spec_class(name, factory))

    contents: dict[str, dict[str, Any]] = {
        "sglang": {"__version__": TESTED},
        "sglang.srt": {},
        "sglang.srt.speculative": {},
        "sglang.srt.managers": {"overlap_utils": None},
        REGISTERED: {"SpeculativeAlgorithm": SpeculativeAlgorithm},
        "sglang.srt.speculative.spec_registry": {"CustomSpecAlgo": type("CustomSpecAlgo", (CustomSpecAlgo,), {})},
        "sglang.srt.server_args": {"ServerArgs": type("ServerArgs", (ServerArgs,), {})},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        module.__path__ = []  # a package
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    return registered


def test_both_algorithms_and_their_flags_are_registered(sglang: dict[str, Any]) -> None:
    entry.register()
    assert sorted(sglang) == sorted(OUR_ALGORITHMS)
    parser = argparse.ArgumentParser()
    sys.modules["sglang.srt.server_args"].ServerArgs.add_cli_args(parser)
    assert all(flag in parser.format_help() for flag in ("--theirs", *VARIABLES))


def without_register(modules: Any) -> str:
    del modules[REGISTERED].SpeculativeAlgorithm.register
    return "spec_info.SpeculativeAlgorithm.register is gone"


def without_spec_class(modules: Any) -> str:
    modules[REGISTERED].SpeculativeAlgorithm.register = classmethod(lambda cls, name, supports_overlap: None)
    return "spec_info.SpeculativeAlgorithm.register does not take spec_class any more"


def without_base(modules: Any) -> str:
    del modules["sglang.srt.speculative.spec_registry"].CustomSpecAlgo
    return "spec_registry.CustomSpecAlgo is gone"


def with_another_parser(modules: Any) -> str:
    modules["sglang.srt.server_args"].ServerArgs.add_cli_args = staticmethod(lambda: None)
    return "server_args.ServerArgs.add_cli_args does not take parser any more"


@pytest.mark.parametrize("change", [without_register, without_spec_class, without_base, with_another_parser])
def test_what_has_changed_is_named_and_nothing_is_registered(
    sglang: dict[str, Any], caplog: pytest.LogCaptureFixture, change: Any
) -> None:
    message = change(sys.modules)
    server_args: Any = sys.modules["sglang.srt.server_args"]
    before = server_args.ServerArgs.add_cli_args
    with caplog.at_level(logging.WARNING):
        entry.register()
    assert message in caplog.text
    assert "are not registered" in caplog.text
    assert not sglang
    assert server_args.ServerArgs.add_cli_args is before


def imported_names() -> Iterator[tuple[str, str]]:
    """Yields module and name of all that the plug-in imports of SGLang while it runs, but for its models."""
    for file in sorted(PLUGIN.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        typing = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        skipped = {child for node in typing for child in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node not in skipped and (node.module or "").startswith("sglang."):
                for alias in node.names:
                    yield str(node.module), alias.name


def test_everything_that_is_imported_of_sglang_is_checked() -> None:
    checked = {(hook.module, hook.name.split(".")[0]) for hook in ALL_HOOKS}
    modules = {hook.module for hook in ALL_HOOKS}
    imported = set(imported_names())
    assert len(imported) > 10
    assert not {
        f"{module}.{name}"
        for module, name in imported
        if (module, name) not in checked and f"{module}.{name}" not in modules
    }


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        ("sglang.srt.managers.scheduler", "Scheduler.maybe_init_draft_worker", "draft_worker"),
        ("sglang.srt.managers.schedule_batch", "ScheduleBatch.grammar_needs_sync", None),
    ],
)
def test_attributes_that_the_plugin_reads_are_checked(module: str, name: str, use: str | None) -> None:
    (hook,) = [hook for hook in ALL_HOOKS if (hook.module, hook.name) == (module, name)]
    assert use is None or use in hook.uses
    text = "".join(file.read_text(encoding="utf-8") for file in PLUGIN.glob("*.py"))
    assert (use or name.split(".")[-1]) in text
