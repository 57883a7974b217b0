"""Checkpoints are located by folder, hub id or bundled name; others are refused at once in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reason.config.errors import ConfigError
from reason.models import hub
from reason.models.checkpoint import BUNDLED, bundled_names, find_model, load_tokenizer, read_vocabulary

TEXT = "Try this. \n\nThe answer is \\boxed{3}."


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "is_hub_reachable", lambda: False)


@pytest.fixture
def cache(tiny_writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with the tiny writer as own/er: its snapshot."""
    home = tmp_path / "models--own--er"
    snapshot = home / "snapshots" / ("0" * 40)
    shutil.copytree(tiny_writer, snapshot)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return snapshot


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_model_is_found_by_name(name: str) -> None:
    assert Path(find_model(BUNDLED + name).source).name == name


@pytest.mark.parametrize("path", [None, 3, "", " "])
def test_path_of_another_type_is_named(path: object) -> None:
    with pytest.raises(ConfigError, match=r"^scorer\.path must be a folder, a hub id or bundled:NAME, got"):
        find_model(path, key="scorer.path")


def test_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\.path: .* it has no config\.json$"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_invalid_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^model\.path: .*config\.json"):
        find_model(str(tmp_path))


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("path", ["absent/nothing", "no body/nothing", "no--body/nothing"])
def test_unknown_hub_id_is_named_at_once(path: str) -> None:
    """The hub's client retries for half a minute, and raises a traceback for a name that it does not allow."""
    with pytest.raises(ConfigError, match=f"^scorer.path={path}: no such folder, .*hub") as caught:
        find_model(path, key="scorer.path")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_hub")
def test_hub_cache_folder_is_used_offline(cache: Path) -> None:
    """By id every cached file was requested again, half a minute each."""
    assert find_model("own/er").source == str(cache)


def test_hub_id_is_used_online(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache may hold config.json alone."""
    monkeypatch.setattr(hub, "is_hub_reachable", lambda: True)
    checkpoint = find_model("own/er")
    assert (checkpoint.source, checkpoint.context_window) == ("own/er", 512)


@pytest.mark.parametrize("declared", ["TokenizersBackend", "Qwen2TokenizerFast", "LlamaTokenizerFast", None])
def test_tokenizer_is_read_from_the_file_whatever_the_config_names(
    declared: str | None, tiny_writer: Path, tmp_path: Path
) -> None:
    """DeepSeek-R1-Distill-Qwen calls its own a LlamaTokenizerFast; `AutoTokenizer` makes a Qwen2Tokenizer of all."""
    shutil.copytree(tiny_writer, tmp_path / "copy")
    file = tmp_path / "copy" / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"tokenizer_class": declared}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}), encoding="utf-8")
    tokenizer = load_tokenizer(str(tmp_path / "copy"))
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert (len(ids), tokenizer.decode(ids)) == (3, TEXT)


def test_checkpoint_without_tokenizer_is_refused(tiny_writer: Path, tmp_path: Path) -> None:
    """transformers makes an empty one."""
    shutil.copy(tiny_writer / "config.json", tmp_path)
    with pytest.raises(ValueError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_vocabulary_in_the_file_is_that_of_the_tokenizer(tiny_writer: Path, tmp_path: Path) -> None:
    assert read_vocabulary(str(tiny_writer)) == load_tokenizer(str(tiny_writer)).get_vocab()
    assert read_vocabulary(str(tmp_path)) is None


def test_unigram_vocabulary_has_its_list_positions_as_ids(tmp_path: Path) -> None:
    data = {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": [{"id": 2, "content": "<s>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    assert read_vocabulary(str(tmp_path)) == {"a": 0, "b": 1, "<s>": 2}
