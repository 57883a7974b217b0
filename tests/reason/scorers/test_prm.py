"""Configured reward models: wrong settings are named before weights load."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reason.models.byte_tokenizer import ByteTokenizer
from reason.models.checkpoint import find_model, load_tokenizer
from reason.scorers.base import PrmAdapter
from reason.scorers.formats.expectation import ExpectationPrm
from reason.scorers.formats.math_shepherd import MathShepherd
from reason.scorers.formats.qwen import QwenPrm
from reason.scorers.formats.skywork import SkyworkPrm
from reason.scorers.formats.token_classification import TokenClassifier
from reason.scorers.prm import PrmScorer, find_reward_model, require_writer_vocabulary
from reason.scorers.read_limit import ReadLimit, find_read_limit
from reason.scorers.sglang_reader import SglangPrmScorer
from tests.support.paths import CONF
from tests.support.scripted_sglang_server import ScriptedSGLangServer

CONFIGS = CONF / "scorer"


def checkpoint_of(folder: Path, **config: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda f: f.stem)
def test_every_scorer_config_builds_without_a_model(file: Path) -> None:
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    scorer = instantiate(OmegaConf.load(file), _convert_="all")
    assert callable(scorer.validate)
    assert callable(scorer.load)
    assert callable(scorer.bind)


def test_building_a_scorer_imports_no_torch() -> None:
    code = (
        "import sys, pathlib; from hydra.utils import instantiate; from omegaconf import OmegaConf\n"
        f"for f in pathlib.Path({str(CONFIGS)!r}).glob('*.yaml'): instantiate(OmegaConf.load(f), _convert_='all')\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"path": ""}, "path must be"),
        ({"device": 0}, "device must be"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        ({"dtype": "float8"}, "float32, float64, bfloat16"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"max_tokens": True}, "max_tokens must be"),
        ({"kv_mib": "1GB"}, "kv_mib must be"),
    ],
)
def test_wrong_scorer_knob_is_named_at_construction(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrmScorer(**{"adapter": QwenPrm(), "path": "bundled:prm", **knobs})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SkyworkPrm(step_token="x"), "newlines"),
        (lambda: TokenClassifier(reads="ids"), "tokens or text"),  # type: ignore[arg-type]
        (lambda: TokenClassifier(judges="all"), "steps or tokens"),  # type: ignore[arg-type]
        (lambda: TokenClassifier(separator=""), "separator"),
        (lambda: TokenClassifier(after_question=None), "after_question"),  # type: ignore[arg-type]
        (lambda: MathShepherd(tag=" ки"), "without spaces"),
        (lambda: MathShepherd(right="-"), "two words"),
    ],
)
def test_wrong_adapter_knob_is_named_at_construction(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("path", ["./missing", "/missing/folder", "~/missing", "~missing-user/x", "missing", "a/b/c"])
def test_missing_folder_is_named_with_its_setting(path: str) -> None:
    with pytest.raises(ValueError, match=rf"^scorer\.path={path}: there is no such folder.* hub id .* bundled:NAME$"):
        PrmScorer(adapter=QwenPrm(), path=path).validate()


@pytest.mark.parametrize("adapter", [QwenPrm(), SkyworkPrm(), MathShepherd(), TokenClassifier()])
def test_wrong_architecture_is_named_with_the_valid_ones(adapter: PrmAdapter, tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(ValueError, match=r"^scorer\.path=.* is a BertForMaskedLM") as caught:
        PrmScorer(adapter=adapter, path=path).load()
    assert all(name in str(caught.value) for name in adapter.architectures)


@pytest.mark.parametrize(
    ("window", "at_most", "tokens", "named"),
    [
        (5000, None, 4096, "as it was trained, says QwenPrm); set scorer.path to a model with a longer window, or set"),
        (5000, 9999, 4096, "as it was trained, says QwenPrm); set scorer.path to a model with a longer window, or set"),
        (5000, 900, 900, "scorer.max_tokens=900); raise scorer.max_tokens or leave it null, or set"),
        (800, 900, 800, "max_position_embeddings in its config.json); set scorer.path to a model with a longer window"),
    ],
)
def test_read_limit_is_the_least_of_model_format_and_caller_and_names_it(
    window: int, at_most: int | None, tokens: int, named: str, tmp_path: Path
) -> None:
    path = checkpoint_of(tmp_path, architectures=list(QwenPrm.architectures), max_position_embeddings=window)
    limit = find_read_limit(find_reward_model(path, QwenPrm(), "scorer"), QwenPrm(), at_most, "scorer")
    assert limit.max_tokens == tokens
    explanation = limit.explain(prompt_tokens=50)
    assert f"at most {tokens} tokens ({named}" in explanation
    assert f"scorer_reads=window and scorer_window below {tokens - 50}" in explanation


def test_window_is_no_remedy_where_none_is_read_or_the_prompt_fills_it() -> None:
    for limit in (ReadLimit.from_setting(50), ReadLimit.from_setting(500, "router")):
        assert "window" not in limit.explain(prompt_tokens=50)


def test_model_without_a_context_length_needs_one_before_it_is_loaded(tmp_path: Path) -> None:
    """The weights are not read first."""
    path = checkpoint_of(tmp_path, architectures=["Qwen2ForTokenClassification"])
    with pytest.raises(ValueError, match=r"^scorer\.max_tokens must be set"):
        PrmScorer(adapter=TokenClassifier(), path=path).validate()
    PrmScorer(adapter=TokenClassifier(), path=path, max_tokens=9).validate()


def test_shared_format_needs_the_prompt() -> None:
    form = TokenClassifier(reads="tokens").build_format(ByteTokenizer())
    with pytest.raises(ValueError, match="prompt's token ids"):
        form.encode_prompt("question", ())


def test_target_with_another_vocabulary_is_refused() -> None:
    """Its ids would name other words to the reward model, and every score would be noise."""
    require_writer_vocabulary("bundled", {"a": 0, "b": 1}, {"b": 1, "a": 0})
    with pytest.raises(ValueError, match="vocabulary is another one"):
        require_writer_vocabulary("bundled", {"a": 0, "b": 1}, {"a": 1, "b": 0})


def test_scorer_tokenizer_is_read_from_the_file(tiny_writer: Path) -> None:
    """`AutoTokenizer` replaces the pre-tokenizer of a qwen2 checkpoint."""
    with closing(PrmScorer(adapter=ExpectationPrm(), path=str(tiny_writer), device="cpu", kv_mib=1)) as scorer:
        text = "Try this. \n\nThe answer is \\boxed{3}."
        ids = scorer.loaded_prm.tokenizer.encode(text, add_special_tokens=False)
        assert (len(ids), scorer.loaded_prm.tokenizer.decode(ids)) == (3, text)


def test_limit_of_servers_is_named_where_it_is_the_least() -> None:
    checkpoint = find_model("bundled:prm")
    tokenizer = load_tokenizer(checkpoint.source)
    server = ScriptedSGLangServer(vocab_size=checkpoint.vocab_size or 0, info={"max_req_input_len": 30})
    server.decode = lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
    with closing(server), closing(SglangPrmScorer(format="prm", urls=server.url)) as scorer:
        explanation = scorer.loaded_prm.limit.explain(prompt_tokens=5)
    assert "at most 30 tokens (max_req_input_len of the servers at scorer.urls); start them with" in explanation
