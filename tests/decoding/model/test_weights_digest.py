"""Checkpoints with the same names, configs and sizes are told apart by their weights, and copies are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from decoding.model.weights_digest import digest_weights

ROWS = 3000  # with 256 columns of float32 3 MB, more than is read of a file


def write_checkpoint(folder: Path, seed: int, *, files: int = 1, hidden: int = 256) -> str:
    """Writes a checkpoint; its weights are drawn with this seed, all else is the same."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": hidden}))
    rng = np.random.default_rng(seed)
    names = {}
    for part in range(files):
        names[f"layer {part}"] = f"model-{part}.safetensors"
        save_file({f"layer {part}": rng.random((ROWS, 256), dtype=np.float32)}, folder / f"model-{part}.safetensors")
    if files > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return str(folder)


@pytest.mark.parametrize("files", [1, 3])
def test_checkpoints_of_one_run_differ_and_a_copy_does_not(tmp_path: Path, files: int) -> None:
    """All are called `hf`, and have the same config, headers and sizes."""
    first = write_checkpoint(tmp_path / "step 1" / "hf", 1, files=files)
    second = write_checkpoint(tmp_path / "step 2" / "hf", 2, files=files)
    assert digest_weights(first) != digest_weights(second)
    shutil.copytree(first, tmp_path / "elsewhere" / "another name")
    assert digest_weights(str(tmp_path / "elsewhere" / "another name")) == digest_weights(first)


def test_a_small_change_of_all_weights_is_seen_and_so_is_the_config(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "a", 1)
    before = digest_weights(model)
    file = tmp_path / "a" / "model-0.safetensors"
    data = bytearray(file.read_bytes())
    for at in range(len(data) // 2, len(data), 400):  # of one weight in a hundred, in half of the file, one bit
        data[at] ^= 1
    file.write_bytes(data)
    assert digest_weights(model) != before
    config = write_checkpoint(tmp_path / "b", 1, hidden=128)
    assert digest_weights(config) != before


def test_only_a_part_of_a_large_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as data:
        data.truncate(1 << 34)  # has no blocks on the disk
    digest_weights(str(tmp_path))  # would not end within the time of a test, nor fit into memory


def test_files_of_other_formats_beside_the_weights_do_not_count(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "a", 1)
    before = digest_weights(model)
    for name in ("pytorch_model.bin", "optimizer.pt", "README.md"):
        (tmp_path / "a" / name).write_bytes(b"x")
    assert digest_weights(model) == before


def test_a_hub_id_is_the_folder_in_the_cache_and_an_unknown_model_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    model = write_checkpoint(snapshot, 1)
    (tmp_path / "models--owner--name" / "refs").mkdir()
    (tmp_path / "models--owner--name" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert digest_weights("owner/name") == digest_weights("owner/name", "abc") == digest_weights(model)
    assert digest_weights("owner/other") == digest_weights("owner/other") != digest_weights("s3://bucket/a/b/c")
