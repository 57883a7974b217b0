"""Embedders: hidden states equal to those of transformers, words and numbers, and sentence-transformers models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import reason
from decoding.core import GenerationRequest, SamplingParams
from reason import ConfigError
from reason.config.compose import compose_settings
from reason.scorers.embedders.hidden_states import HiddenStateEmbedder
from reason.scorers.embedders.sentence_transformers import SentenceTransformerEmbedder
from reason.scorers.embedders.words import WordEmbedder
from reason.settings.optional_groups import make_embedder
from search.clustering import cosine_distances
from search.tree import Step


@pytest.mark.parametrize("speculation", ["off", "stand"])
def test_hidden_states_are_those_that_predicted_the_last_token(tiny_writer: Path, speculation: str) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_writer, dtype=torch.float32).eval()
    with reason.load(
        "search=self_consistency", "scorer=none", f"speculation={speculation}",
        "model=hf", f"model.path={tiny_writer}", "model.prompt.raw='{question}'",
    ) as solver:  # fmt: skip
        requests = [
            GenerationRequest(prefix=(5, 6, 7 + i), params=SamplingParams(max_tokens=9), seed=i, hidden=i < 3)
            for i in range(4)
        ]
        engine: Any = solver.engine
        generations = asyncio.run(engine.generate(requests))
    for request, generation in zip(requests, generations, strict=True):
        if not request.hidden:
            assert generation.hidden is None
            continue
        tokens = torch.tensor([[*request.prefix, *generation.tokens]])
        with torch.inference_mode():
            states = model(tokens, output_hidden_states=True).hidden_states[-1][0]
        assert generation.hidden is not None
        assert np.allclose(generation.hidden, states[-2].numpy(), atol=1e-4)


def test_engine_without_hidden_states_needs_another_embedder() -> None:
    with pytest.raises(ValueError, match="choose embedder=words"):
        asyncio.run(HiddenStateEmbedder(distance_threshold=0.1).embed([Step((1,), "a")], [None]))


def test_wrong_distance_threshold_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedder\.distance_threshold must be a number > 0, got 0"):
        reason.load("search=ets", "embedder.distance_threshold=0")
    with pytest.raises(ConfigError, match=r"embedder\.path must be set"):
        reason.load("search=ets", "embedder=sentence_transformers")


@pytest.fixture(scope="module")
def sentence_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT with mean pooling, in the format of sentence-transformers."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("sentence")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789=+"]
    words += [f"##{word}" for word in words[5:]]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder / "bert")
    parts = [models.Transformer(str(folder / "bert")), models.Pooling(32)]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder / "whole"))
    return folder / "whole"


def test_sentence_transformers_embedder_embeds_texts(sentence_model: Path) -> None:
    embedder = SentenceTransformerEmbedder(path=str(sentence_model), distance_threshold=0.1, device="cpu")
    embedder.validate()
    embedder.load()
    steps = [Step((1,), text) for text in ("one = 1", "two = 2", "one = 1")]
    vectors = asyncio.run(embedder.embed(steps, [None] * 3))
    assert vectors.shape == (3, 32)
    assert np.allclose(vectors[0], vectors[2], atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


def test_sentence_transformers_embedder_serves_a_whole_search(sentence_model: Path, tiny_writer: Path) -> None:
    with reason.load(
        "search=ets", "search.n=4", "search.depth=2", "search.step_tokens=8", "scorer=likelihood", "speculation=off",
        "model=hf", f"model.path={tiny_writer}", "model.prompt.raw='{question}'",
        "embedder=sentence_transformers", f"embedder.path={sentence_model}",
    ) as solver:  # fmt: skip
        assert len(solver.solve("ab").tree) >= 4


def test_folder_that_is_no_sentence_transformers_model_is_named(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises((ValueError, OSError)):
        SentenceTransformerEmbedder(path=str(tmp_path / "nothing"), distance_threshold=0.1, device="cpu").load()


def test_word_embedder_separates_steps_by_words_numbers_and_order() -> None:
    texts = ["First, x1: 4*8=32.", "First, x1: 4*8=32.", "x1: 4*8=32.", "x1: 8*4=32.", "no more"]
    vectors = asyncio.run(WordEmbedder(distance_threshold=0.1).embed([Step((1,), text) for text in texts], [None] * 5))
    distances = cosine_distances(vectors)
    same, filler, order, other = distances[0], distances[1], distances[7], distances[9]
    assert same < 1e-6 < filler < order < other


@pytest.mark.parametrize("search", ["search=ets", "search=rebase"])
def test_router_refuses_hidden_states_as_embedder(search: str) -> None:
    merge = "search.merge=true"
    with pytest.raises(ConfigError, match="choose embedder=words"):
        reason.load(search, merge, "router=random")
    with reason.load(search, merge, "router=random", "embedder=words", "search.n=4", "speculation=off") as solver:
        assert len(solver.solve("x0 = 3. Each next term is 5 times the one before, modulo 7. Find x2.").tree) > 4


def test_threshold_of_another_model_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    HiddenStateEmbedder(distance_threshold=0.1, measured_on="bundled:target").warn_of_other_model("bundled:target")
    HiddenStateEmbedder(distance_threshold=0.1).warn_of_other_model("hub/model")
    assert not caplog.text
    HiddenStateEmbedder(distance_threshold=0.1, measured_on="bundled:target").warn_of_other_model("hub/model")
    assert "measured on bundled:target, not on hub/model" in caplog.text
    with pytest.raises(ConfigError, match=r"embedder\.measured_on must be the path of a model"):
        reason.load("search=ets", "embedder.measured_on=7")


@pytest.mark.parametrize(
    ("settings", "measured", "used"),
    [
        (["embedder=words"], "bundled:target", None),
        (["embedder=words", "embedder.measured_on=null", "model.path=hub/model"], None, None),
        (["embedder=words", "model.path=hub/model"], "bundled:target", "hub/model"),
        (["embedder=zbmath", "model.path=hub/model"], "math-similarity/Bert-MLM_arXiv-MP-class_zbMath", None),
        (
            ["embedder=sentence_transformers", "embedder.path=all-MiniLM-L6-v2"],
            "math-similarity/Bert-MLM_arXiv-MP-class_zbMath",
            "all-MiniLM-L6-v2",
        ),
    ],
)
@pytest.mark.parametrize("search", [["search=ets"], ["search=beam_search", "search.merge=true"]])
def test_every_shipped_threshold_names_what_it_was_measured_on(
    search: list[str], settings: list[str], measured: str | None, used: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    config, choices = compose_settings([*search, *settings])
    assert config["embedder"]["measured_on"] == measured
    with patch("importlib.util.find_spec"):  # the package need not be there
        make_embedder(config, choices, None)
    assert caplog.text.count("was measured on") == (used is not None)
    assert used is None or f"measured on {measured}, not on {used}" in caplog.text


@pytest.mark.parametrize("step", ["markers", "entropy"])
def test_steps_that_end_before_a_written_token_refuse_hidden_states(step: str) -> None:
    with pytest.raises(ConfigError, match=rf"step={step} takes off .*; choose embedder=words"):
        reason.load("search=ets", "embedder=hidden_states", f"step={step}")
    reason.load("search=ets", "embedder=words", f"step={step}").close()
