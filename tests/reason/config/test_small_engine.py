"""`engine@small` runs elsewhere what `small` does, and leaves the model that solves as it is."""

from __future__ import annotations

import pytest

from reason.config.compose import compose_settings, keep_target_options


@pytest.mark.parametrize("small", ["openai", "sglang", "function"])
@pytest.mark.parametrize(
    ("typed", "model", "speculation"),
    [
        ([], "bundled", "stand"),
        (["speculation=suffix", "model=thinker"], "thinker", "suffix"),
        (["engine=openai"], "served", "off"),
        (["engine=sglang", "model=qwen3-8b"], "qwen3-8b", "off"),
        (["+experiment=paper_ets"], "llama-3.2-1b", "stand"),
    ],
)
def test_target_keeps_its_model_and_its_drafts(small: str, typed: list[str], model: str, speculation: str) -> None:
    _, choices = compose_settings([f"engine@small={small}", *typed])
    assert (choices["model"], choices["speculation"], choices["engine@small"]) == (model, speculation, small)


@pytest.mark.parametrize(
    "typed",
    [
        ["search.n=4"],
        ["engine@small=local"],
        ["engine@small=openai", "engine=local,openai", "-m"],  # each job of a sweep is composed by itself
        ["engine@small=openai", "model=nope"],  # explained where all settings are composed
    ],
)
def test_other_overrides_stay_as_they_are(typed: list[str]) -> None:
    assert keep_target_options(typed) == typed
