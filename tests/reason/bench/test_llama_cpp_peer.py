"""llama.cpp: the file that is written for it, and how its functions are called."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reason.bench.baselines import BranchWorkload
from reason.bench.peers.gguf_file import interleave_rotary, rename_tensor, write_gguf
from reason.bench.peers.llama_cpp_engine import LlamaCppPeer
from tests.support.llama_cpp_stand_in import LlamaCppStandIn, expected_tokens
from tests.support.paths import ROOT
from tests.support.random_models import random_model

PROMPT = (3, 14, 15, 9, 26, 5)


def open_peer(
    monkeypatch: pytest.MonkeyPatch, library: LlamaCppStandIn, *, shares_cells: bool = True, file: str = "model.gguf"
) -> LlamaCppPeer:
    monkeypatch.setitem(sys.modules, "llama_cpp", library)
    return LlamaCppPeer(Path(file), 1, dtype="float32", shares_cells=shares_cells)


@pytest.mark.parametrize("shares_cells", [True, False])
@pytest.mark.parametrize(("branches", "limit"), [(1, 256), (5, 256), (5, 5), (5, 2)])
def test_every_branch_is_what_the_model_decodes_alone(
    monkeypatch: pytest.MonkeyPatch, branches: int, limit: int, shares_cells: bool
) -> None:
    library = LlamaCppStandIn(max_sequences=limit)
    with open_peer(monkeypatch, library, shares_cells=shares_cells).open_run(
        BranchWorkload(PROMPT, 7, branches)
    ) as decode:
        decoded = decode()
    assert decoded == [expected_tokens(PROMPT, 7, seed) for seed in range(branches)]
    assert library.alive == [], "what C holds is freed"
    parts = -(-branches // limit)
    assert [rows for rows in library.rows if rows == PROMPT] == [PROMPT] * parts, "a prompt is read once"
    (context,) = library.contexts
    size, together = context.settings.n_ctx, min(limit, branches)
    least = len(PROMPT) + 7 * together if shares_cells else together * 256
    assert least <= size < least + 256
    assert context.settings.kv_unified is shares_cells
    assert not hasattr(context.settings, "type_k"), "what is timed has the defaults of llama.cpp"


def test_greedy_branches_are_the_likeliest_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    library = LlamaCppStandIn()
    with open_peer(monkeypatch, library).open_run(BranchWorkload(PROMPT, 9, 2), greedy=True) as decode:
        assert decode() == [expected_tokens(PROMPT, 9, None)] * 2
        assert decode() == [expected_tokens(PROMPT, 9, None)] * 2, "a run starts with empty cells"
    settings = library.contexts[0].settings
    assert (settings.type_k, settings.type_v, settings.flash_attn_type) == (0, 0, 0), "exact"


def test_errors_of_llama_cpp_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"llama\.cpp cannot load broken\.gguf"):
        open_peer(monkeypatch, LlamaCppStandIn(), file="broken.gguf")
    library = LlamaCppStandIn(failing_decode=-3)
    with (
        open_peer(monkeypatch, library).open_run(BranchWorkload(PROMPT, 2, 1)) as decode,
        pytest.raises(RuntimeError, match="llama_decode failed with -3"),
    ):
        decode()
    assert library.alive == []


@given(heads=st.integers(1, 3), half=st.integers(1, 4), position=st.integers(0, 500), seed=st.integers(0, 99))
def test_interleaved_rows_rotate_as_the_halves_did(heads: int, half: int, position: int, seed: int) -> None:
    """Scores of queries and keys are products, which an equal order of entries in both leaves as they are."""
    size = 2 * half
    vectors = np.random.default_rng(seed).standard_normal(heads * size).astype(np.float32)
    angles = position * 10000.0 ** (-np.arange(half) / half)
    turns = np.cos(angles) + 1j * np.sin(angles)

    by_halves = vectors.reshape(heads, 2, half)
    turned = (by_halves[:, 0] + 1j * by_halves[:, 1]) * turns
    expected = np.stack([turned.real, turned.imag], 1).reshape(-1).astype(np.float32)

    neighbours = interleave_rotary(vectors, heads).reshape(heads, half, 2)
    rotated = (neighbours[..., 0] + 1j * neighbours[..., 1]) * turns
    in_place = np.stack([rotated.real, rotated.imag], -1).reshape(-1).astype(np.float32)
    np.testing.assert_allclose(in_place, interleave_rotary(expected, heads), rtol=1e-5)


def test_every_tensor_of_a_llama_has_a_name_of_its_own() -> None:
    names = [name for name, _ in random_model("llama").named_parameters()]
    assert len({rename_tensor(name) for name in names}) == len(names)
    with pytest.raises(ValueError, match=r"a Llama of GGUF has no tensor model\.layers\.0\.self_attn\.q_norm\.weight"):
        rename_tensor("model.layers.0.self_attn.q_norm.weight")


@pytest.mark.parametrize("is_bfloat16", [False, True])
def test_a_file_holds_the_weights_exactly(is_bfloat16: bool, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    model = random_model("llama", tie_word_embeddings=True)
    model.bfloat16().save_pretrained(tmp_path)
    write_gguf(str(tmp_path), tmp_path / "model.gguf", is_bfloat16=is_bfloat16)
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    parameters = dict(model.named_parameters())
    assert set(written) == {rename_tensor(name) for name in parameters}
    for name, parameter in parameters.items():
        values = parameter.detach().float().numpy()
        for projection, heads in (("q_proj", 4), ("k_proj", 2)):
            values = interleave_rotary(values, heads) if projection in name else values
        tensor = written[rename_tensor(name)]
        assert (tensor.tensor_type == gguf.GGMLQuantizationType.BF16) == (is_bfloat16 and parameter.ndim == 2)
        data = gguf.dequantize(np.asarray(tensor.data), tensor.tensor_type).reshape(values.shape)
        np.testing.assert_array_equal(data, values)


def test_no_token_of_a_text_is_the_one_that_begins_texts(tmp_path: Path) -> None:
    """A server leaves that one out of what it sends. A file that names none has GPT-2's id 11, which is "*" here."""
    gguf = pytest.importorskip("gguf")
    write_gguf(str(ROOT / "reason" / "models" / "bundled" / "target"), tmp_path / "model.gguf", with_tokens=True)
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    begin, end = (int(fields[f"tokenizer.ggml.{name}_token_id"].parts[-1][0]) for name in ("bos", "eos"))
    assert begin == end


@pytest.mark.parametrize(("family", "got"), [("qwen3", "qwen3 with default"), ("llama3_rope", "llama with llama3")])
def test_other_families_are_refused(family: str, got: str, tmp_path: Path) -> None:
    random_model(family).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"model_type must be llama with rope_type default, got {got}"):
        write_gguf(str(tmp_path), tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
