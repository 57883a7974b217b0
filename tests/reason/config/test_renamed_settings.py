"""Settings of the last release still work: names, groups and classes, each with one warning that says today's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

import reason
from reason.config import renamed_settings
from reason.config.compose import compose_settings, list_options
from reason.config.renamed_settings import current_target, rename_overrides, rename_settings

LAST_RELEASE = (
    "decoding.acceptance.coupled.Coupled",
    "decoding.acceptance.greedy_match.GreedyMatch",
    "decoding.acceptance.k_sequential.KSequential",
    "decoding.acceptance.point_mass.PointMass",
    "decoding.acceptance.recursive_iid.RecursiveIid",
    "decoding.acceptance.recursive_rejection.RecursiveRejection",
    "decoding.acceptance.traversal.Traversal",
    "decoding.controllers.chain.Chain",
    "decoding.controllers.fixed.Fixed",
    "decoding.controllers.goodput.Goodput",
    "decoding.controllers.template.FromTemplate",
    "decoding.controllers.throughput.Throughput",
    "decoding.core.SamplingParams",
    "decoding.drafters.hybrid.Hybrid",
    "decoding.drafters.none.NoDraft",
    "decoding.drafters.prompt_lookup.PromptLookup",
    "decoding.drafters.stand.Stand",
    "decoding.drafters.suffix.SuffixDecoding",
    "decoding.drafters.token_recycling.TokenRecycling",
    "decoding.drafters.tree.TreeDrafter",
    "reason.arbitrage.cue.Cue",
    "reason.arbitrage.entropy.Entropy",
    "reason.arbitrage.fixed.DraftOnly",
    "reason.arbitrage.fixed.Off",
    "reason.arbitrage.fixed.TargetOnly",
    "reason.arbitrage.learned.Learned",
    "reason.arbitrage.oracle.Oracle",
    "reason.arbitrage.random_rate.RandomRate",
    "reason.arbitrage.reward_threshold.RewardThreshold",
    "reason.embed.hidden_states.HiddenStates",
    "reason.embed.sentence_transformers.SentenceTransformers",
    "reason.embed.words.Words",
    "reason.endpoint.settings.Endpoints",
    "reason.models.draft_model.draft_source",
    "reason.models.local.local_engine",
    "reason.prm.expectation.Expectation",
    "reason.prm.likelihood.Likelihood",
    "reason.prm.math_shepherd.MathShepherd",
    "reason.prm.none.NoScorer",
    "reason.prm.qwen.QwenPrm",
    "reason.prm.rlhflow.RlhflowPrm",
    "reason.prm.scorer.PrmScorer",
    "reason.prm.served.ServedPrm",
    "reason.prm.skywork.SkyworkPrm",
    "reason.prm.token_classification.TokenClassifier",
    "reason.prompt.PromptFormat",
    "reason.remote.servers.Servers",
    "reason.tasks.aime.Aime",
    "reason.tasks.gpqa.Gpqa",
    "reason.tasks.gsm8k.Gsm8k",
    "reason.tasks.math500.Math500",
    "reason.tasks.synthetic.Synthetic",
    "search.astar.AStar",
    "search.beam_search.BeamSearch",
    "search.best_of_n.BestOfN",
    "search.dvts.Dvts",
    "search.ets.Ets",
    "search.mcts.Mcts",
    "search.rebase.Rebase",
    "search.self_consistency.SelfConsistency",
)
"""Every class that a file of conf/ named in the last release."""

CONFIGS = ("solve", "serve", "serve_models", "train")
ROWS = {old: new for old, new in renamed_settings.renamed_settings().items() if "*" not in old}


@pytest.fixture(autouse=True)
def warned_of_nothing() -> Iterator[None]:
    renamed_settings.warn_renamed.cache_clear()
    yield
    renamed_settings.warn_renamed.cache_clear()


def composition_with(key: str) -> tuple[str, list[str]]:
    """Returns a program and choices of groups whose settings have `key`."""
    group = key.partition(".")[0]
    groups = {"small": "engine@small"}
    named = groups.get(group, group)
    for config in CONFIGS:
        # search=auto becomes the search that it chooses, and has knobs of its own before
        options = [name for name in list_options(named.partition("@")[0]) if name != "auto"]
        choices = [[], *([f"{named}={name}"] for name in options)]
        for chosen in [*choices, *([f"+{choice}"] for [choice] in choices[1:])]:
            try:
                settings = compose_settings([*chosen, *(["model.path=x"] if config == "solve" else [])], config)[0]
            except reason.ConfigError:
                continue
            if OmegaConf.select(OmegaConf.create(settings), key, default="absent") != "absent":
                return config, chosen
    raise AssertionError(f"no program has the setting {key}")


def nested(key: str, value: object) -> dict[str, object]:
    """`value` at a dotted key.

    >>> nested("search.n", 3)
    {'search': {'n': 3}}
    """
    name, _, rest = key.partition(".")
    return {name: nested(rest, value) if rest else value}


@pytest.mark.parametrize("old", ROWS)
def test_old_override_sets_the_new_name_and_warns_once(
    old: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new = ROWS[old]
    config, chosen = composition_with(new)
    extra = ["model.path=x"] if config == "solve" else []
    with caplog.at_level(logging.WARNING):
        settings = [compose_settings([*chosen, *extra, f"{name}=null"], config)[0] for name in (old, old, new)]
    assert settings[0] == settings[1] == settings[2]
    assert [record.getMessage() for record in caplog.records] == [
        f"{old} is now called {new}; the old name works in this release only"
    ]


@pytest.mark.parametrize("old", ROWS)
def test_user_file_may_have_an_old_name(old: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert rename_settings(nested(old, 3)) == nested(ROWS[old], 3)
    assert f"is now called {ROWS[old]}" in caplog.text


@pytest.mark.parametrize("sign", ["", "+", "++", "~"])
def test_every_form_of_override_is_rewritten(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed_settings, "renamed_settings", lambda: {"engine.wide": "engine.width", "draft": "small"})
    assert rename_overrides([f"{sign}engine.wide=1,2"]) == [f"{sign}engine.width=1,2"]
    assert rename_overrides([f"{sign}engine@draft=sglang"]) == [f"{sign}engine@small=sglang"]
    assert rename_overrides([f"{sign}engine@a:draft=sglang"]) == [f"{sign}engine@a:small=sglang"]
    assert rename_overrides([f"{sign}draft.path=x"]) == [f"{sign}small.path=x"]


def test_arguments_without_an_old_name_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed_settings, "renamed_settings", lambda: {"draft": "small"})
    arguments = ["-m", "--config-dir", "draft", "question='the draft.path=x'", "hydra/launcher=joblib", "drafts.n=1"]
    assert rename_overrides(arguments) == arguments
    assert rename_overrides(["~draft.path"]) == ["~small.path"]


def test_knob_renamed_together_with_its_group_has_both_new_names(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = {"draft": "small", "small.wide": "small.width"}
    monkeypatch.setattr(renamed_settings, "renamed_settings", lambda: pairs)
    assert rename_overrides(["draft.wide=1"]) == ["small.width=1"]
    assert rename_settings({"draft": {"wide": 1}, "small": {"width": 2, "path": "x"}}) == {
        "small": {"width": 1, "path": "x"}
    }


def test_knobs_of_each_source_of_a_hybrid_are_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = {"speculation.source.sources.*.wide": "speculation.source.sources.*.width"}
    monkeypatch.setattr(renamed_settings, "renamed_settings", lambda: pairs)
    old = {"speculation": {"source": {"sources": [{"wide": 1}, {"n": 2}]}}}
    assert rename_settings(old) == {"speculation": {"source": {"sources": [{"width": 1}, {"n": 2}]}}}


@pytest.mark.parametrize("target", LAST_RELEASE)
def test_class_of_the_last_release_is_found(target: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        renamed = rename_settings({"search": {"_target_": target}})
    new = current_target(target)
    assert renamed == {"search": {"_target_": new}}
    assert callable(get_object(new))
    assert caplog.text.count(f"is now called {new};") == (new != target)


def test_saved_settings_of_the_last_release_are_read_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    saved = {"engine": {"_target_": "reason.models.local.local_engine", "max_rows": 8}, "draft": {"path": "x"}}
    with caplog.at_level(logging.WARNING):
        settings = rename_settings(saved, warn=False)
    assert settings == {
        "engine": {"_target_": "reason.engines.local.LocalSettings", "max_batched_tokens": 8},
        "small": {"path": "x"},
    }
    assert not caplog.text


def test_user_yaml_of_the_last_release_composes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings, _ = compose_settings(["search=self_consistency", "model.path=x"])
    settings["search"]["_target_"] = "search.self_consistency.SelfConsistency"
    with caplog.at_level(logging.WARNING), pytest.raises(reason.ConfigError, match=r"^model\.path=x"):
        reason.from_config(OmegaConf.create(settings))
    assert "search.self_consistency.SelfConsistency is now called search.strategies." in caplog.text


def test_plugin_class_keeps_its_own_old_names_and_gets_new_ones_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renamed_settings, "renamed_settings", lambda: {"search.wide": "search.width"})
    assert rename_settings({"search": {"_target_": "mine.Search", "wide": 1}})["search"] == {
        "_target_": "mine.Search",
        "wide": 1,
    }

    def takes_the_new(width: int) -> None: ...
    def takes_the_old(wide: int) -> None: ...

    assert renamed_settings.rename_arguments("search", {"wide": 1}, takes_the_new) == {"width": 1}
    assert renamed_settings.rename_arguments("search", {"wide": 1}, takes_the_old) == {"wide": 1}
