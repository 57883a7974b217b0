"""Flags of the plug-in, what it checks of SGLang, and when it saves, without SGLang."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from decoding.sglang_plugin.hooks import BELOW, OLDEST, TESTED, Hook, explain_version, require_hooks
from decoding.sglang_plugin.server_args import check_server_args, set_server_args
from decoding.sglang_plugin.settings import VARIABLES, PluginSettings, add_flags
from decoding.speculation.saving import SavingSchedule
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags write to the environment; afterwards it is as it was."""
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")  # so that the end of the test restores it
        monkeypatch.delenv(variable)


def parse(*flags: str) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    parser.parse_args(flags)


def test_flags_reach_other_processes_through_the_environment(tmp_path: Path) -> None:
    assert PluginSettings.from_environment(os.environ) == PluginSettings(controller="adaptive", table_decay=1.0)
    parse("--reason-controller", "fixed", f"--reason-table={tmp_path}", "--reason-table-decay", "0.25")
    assert PluginSettings.from_environment(os.environ) == PluginSettings("fixed", table=tmp_path, table_decay=0.25)
    parse("--reason-draft", "eagle", "--reason-draft-agree", "0")
    settings = PluginSettings.from_environment(os.environ)
    assert (settings.draft, settings.draft_agree, settings.controller) == ("eagle", 0.0, "fixed")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--reason-controller", "never"], "--reason-controller must be one of adaptive, fixed; got 'never'"),
        (["--reason-table-decay", "0"], "--reason-table-decay must be "),
        (["--reason-table-decay", "half"], "--reason-table-decay must be a number in (0, 1], got half"),
        (["--reason-table", __file__], "--reason-table must be a folder, "),
        (["--reason-draft", "medusa"], "--reason-draft must be one of standalone, eagle, eagle3; got 'medusa'"),
        (["--reason-draft-agree", "2"], "--reason-draft-agree must be in [0, 1], got 2.0"),
        (["--reason-draft-agree", "some"], "--reason-draft-agree must be a number in [0, 1], got some"),
    ],
)
def test_a_wrong_flag_is_refused_by_name(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*flags)
    assert message in capsys.readouterr().err
    assert not [variable for variable in VARIABLES.values() if variable in os.environ]
    variables = dict(zip((VARIABLES[flag] for flag in flags[:1]), flags[1:], strict=True))
    with pytest.raises(ValueError, match=flags[0]):
        PluginSettings.from_environment(variables)


def test_a_draft_model_needs_a_fixed_number_of_nodes() -> None:
    with pytest.raises(ValueError, match="--reason-controller must be fixed with --reason-draft, got adaptive"):
        PluginSettings("adaptive", draft="eagle")


def server_args(**changes: Any) -> Any:
    """SGLang's settings as its command leaves them when no flag is given."""
    unset = ("page_size", "max_running_requests", "speculative_draft_model_path", "speculative_num_draft_tokens")
    thresholds = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
    off = ("enable_dp_attention", "enable_multi_layer_eagle", "disable_overlap_schedule", "speculative_adaptive")
    fields: dict[str, Any] = dict.fromkeys((*unset, "speculative_num_steps", "speculative_eagle_topk"))
    fields |= dict.fromkeys((*off, "speculative_use_rejection_sampling"), False) | dict.fromkeys(thresholds, 1.0)
    fields["attention_backend"] = None
    fields |= {"device": "cuda", "pp_size": 1, "enable_mixed_chunk": True, "speculative_ngram_max_bfs_breadth": 10}
    assert not changes.keys() - fields.keys()
    return SimpleNamespace(**(fields | changes))


DRAFTING = PluginSettings(draft="standalone")
MODEL = {"speculative_draft_model_path": "small"}


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        (PluginSettings(), MODEL, "--speculative-draft-model-path needs --reason-draft with REASON"),
        (PluginSettings(), {"page_size": 16}, "REASON needs --attention-backend flashinfer with --page-size 16"),
        (PluginSettings(), {"page_size": 16, "attention_backend": "triton"}, "--page-size 16, got triton"),
        (PluginSettings(), {"speculative_num_draft_tokens": 1}, "--speculative-num-draft-tokens must be an int >= 2"),
        (PluginSettings(), {"speculative_num_draft_tokens": 0}, "--speculative-num-draft-tokens must be an int >= 2"),
        (PluginSettings(draft_agree=0.1), {}, "--reason-draft-agree needs --reason-draft"),
        (PluginSettings(table_decay=0.5), {}, "--reason-table-decay needs --reason-table"),
        (
            PluginSettings(),
            {"speculative_use_rejection_sampling": True, "speculative_accept_threshold_acc": 0.5},
            "REASON does not work with --speculative-accept-threshold-acc, --speculative-use-rejection-sampling",
        ),
        (PluginSettings(), {"pp_size": 2}, "REASON supports tensor parallelism, but neither pipelines nor"),
        (DRAFTING, {}, "--reason-draft standalone needs --speculative-draft-model-path"),
        (DRAFTING, MODEL | {"enable_dp_attention": True}, "neither pipelines nor data-parallel attention"),
        (DRAFTING, MODEL | {"speculative_eagle_topk": 1}, "--speculative-eagle-topk must be an int >= 2, got 1"),
        (DRAFTING, MODEL | {"speculative_num_steps": 1}, "--speculative-num-steps must be an int >= 2, got 1"),
        (DRAFTING, MODEL | {"speculative_num_draft_tokens": 2}, "--speculative-num-draft-tokens must be an int >= 3"),
        (DRAFTING, MODEL | {"speculative_num_draft_tokens": 0}, "--speculative-num-draft-tokens must be an int >= 3"),
        (DRAFTING, MODEL | {"speculative_accept_threshold_single": 0.9}, "--speculative-accept-threshold-single"),
        (
            DRAFTING,
            MODEL | {"page_size": 16, "speculative_adaptive": True},
            "--reason-draft standalone does not work with --page-size, --speculative-adaptive",
        ),
        (DRAFTING, MODEL | {"speculative_use_rejection_sampling": True}, "--speculative-use-rejection-sampling"),
    ],
)
def test_servers_that_the_algorithm_does_not_support_are_refused(
    settings: PluginSettings, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_server_args("REASON", settings, server_args(**changes))


def test_what_the_user_has_set_stays() -> None:
    chosen = {"speculative_num_steps": 6, "speculative_eagle_topk": 8, "speculative_num_draft_tokens": 33}
    for args in (server_args(**MODEL), server_args(**MODEL, **chosen, page_size=1, max_running_requests=5)):
        check_server_args("REASON", DRAFTING, args)
        expected = {name: getattr(args, name) for name in chosen if getattr(args, name) is not None}
        set_server_args(DRAFTING, args)
        assert {name: getattr(args, name) for name in expected} == expected
        assert args.speculative_num_steps >= 2
        assert args.speculative_eagle_topk >= 2
        assert args.disable_overlap_schedule
        assert not args.enable_mixed_chunk
    assert args.max_running_requests == 5
    paged = server_args(page_size=16, attention_backend="flashinfer", speculative_num_draft_tokens=2)
    check_server_args("REASON", PluginSettings(), paged)
    args = server_args()
    check_server_args("REASON", PluginSettings(table=Path("tables"), table_decay=0.5), args)
    set_server_args(PluginSettings(), args)
    assert not args.disable_overlap_schedule
    assert (args.speculative_num_draft_tokens, args.speculative_eagle_topk) == (12, 10)


def test_hooks_that_are_there_pass() -> None:
    hooks = [
        Hook("decoding.token_view", "TokenView.__init__", ("parts",)),
        Hook("decoding.sglang_plugin.rounds", "ServerRounds.verify_round", ("planned",), ("drafter", "top_logprobs")),
        Hook("decoding.speculation.saving", "SavingSchedule", ("save", "begin")),
    ]
    require_hooks(TESTED, hooks)


@pytest.mark.parametrize(
    ("hook", "change"),
    [
        (Hook("decoding.no_such_module", "f"), "decoding.no_such_module.f is gone"),
        (Hook("decoding.speculation.saving", "SavingSchedule.no_such"), "SavingSchedule.no_such is gone"),
        (Hook("decoding.speculation.saving", "SavingSchedule", ("end",)), "does not take end any more"),
        (
            Hook("decoding.speculation.saving", "SavingSchedule.note_round", ("now",), ("other",)),
            "SavingSchedule.note_round does not use other any more",
        ),
    ],
)
def test_every_change_is_named(hook: Hook, change: str) -> None:
    unchanged = Hook("decoding.token_view", "TokenView")
    with pytest.raises(
        RuntimeError, match=r"SGLang 9\.9 differs from .*, with which the plugin was tested: "
    ) as caught:
        require_hooks("9.9", [unchanged, hook])
    assert change in str(caught.value)
    assert "TokenView" not in str(caught.value)


def test_the_tested_version_is_supported() -> None:
    assert explain_version(TESTED) is None
    assert explain_version(OLDEST) is None
    assert explain_version(BELOW) is not None
    assert explain_version("0.4.9") is not None
    assert f"version=${{2:-{TESTED}}}" in (ROOT / "tests" / "sglang" / "setup.sh").read_text(encoding="utf-8")


def test_a_table_is_saved_when_something_was_learned_and_no_request_waits() -> None:
    saved: list[str] = []
    schedule = SavingSchedule(lambda: saved.append("table"), 100.0, busy_s=600.0)
    schedule.note_idle(200.0)
    assert not saved  # nothing was learned
    schedule.note_round(201.0)
    schedule.note_idle(201.5)
    schedule.note_idle(202.0)
    assert len(saved) == 1
    schedule.note_round(203.0)
    schedule.note_idle(203.5)  # too soon: a client that asks one thing after the other would wait for each
    assert len(saved) == 1
    schedule.note_idle(209.0)
    assert len(saved) == 2
    for second in range(1000):
        schedule.note_round(209.0 + second)
    assert len(saved) == 3  # a server that is never idle
    schedule.save_now(1300.0)
    assert len(saved) == 4
    schedule.save_now(1301.0)
    assert len(saved) == 4
