"""What the draft model says at every node equals a plain forward of that path, whatever happened before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core import SamplingParams, Tokens
from decoding.kv.sequence import TokenSequence
from decoding.kv.shared_prefix import group_by_prefix
from decoding.model.batch import SequenceInput, pack_batch
from decoding.model.transformers_checkpoint import HFBackend
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.one_call import FIRST_CALL
from decoding.speculation.interfaces import Branch
from reason.engines.draft_model import DraftModelSource
from reason.models.checkpoint import find_model, load_tokenizer
from tests.support.fakes import HashBackend
from tests.support.random_models import random_model
from tests.support.streams import BranchStream, WalkLevel

Plain = Callable[[Tokens], np.ndarray]


def plain_toy(context: Tokens) -> np.ndarray:
    """The toy's log-probabilities after a context that is fed all at once and alone."""
    backend, sequence = HashBackend(), TokenSequence(0, context)
    feed = SequenceInput(sequence, len(context), np.arange(1, len(context) + 1), len(context) - 1)
    batch, _ = pack_batch([feed], group_by_prefix([sequence]))
    hidden = backend.forward(batch, backend.new_kv_pool(len(context)))
    logp: np.ndarray = backend.apply_head(hidden)[0].log_softmax(-1).numpy()
    return logp


def plain_model(model: Any) -> Plain:
    def plain(context: Tokens) -> np.ndarray:
        with torch.no_grad():
            logp: np.ndarray = model(torch.tensor([context])).logits[0, -1].log_softmax(-1).numpy()
        return logp

    return plain


def compare(level: WalkLevel, plain: Plain, k: int) -> tuple[int, int]:
    """Rows that were answered and rows that were not."""
    answered = 0
    for context, ids, logp in zip(level.contexts, level.next_tokens.ids_FK, level.next_tokens.logp_FK, strict=True):
        if ids[0] >= 0:
            expected = plain(context)
            np.testing.assert_allclose(logp, np.sort(expected)[::-1][:k], atol=1e-4)
            np.testing.assert_allclose(logp, expected[ids], atol=1e-4)
            answered += 1
    return answered, len(level.owners) - answered


@pytest.mark.parametrize(("pages", "max_batched_tokens"), [(4000, 1024), (4000, 9), (450, 16)])
def test_every_node_equals_the_path_alone(pages: int, max_batched_tokens: int) -> None:
    """Branches grow, end, fork and return, keep parts of drafts, and give way to each other where room is short."""
    source = DraftModel(HashBackend(), k=5, kv_bytes=pages, max_batched_tokens=max_batched_tokens)
    answered = unanswered = 0
    for round_, (_, levels) in enumerate(BranchStream(seed=6).run_rounds(source, 30)):
        for level in levels:
            there, missing = compare(level, plain_toy, 5)
            answered, unanswered = answered + there, unanswered + missing
        if round_ % 10 == 9:
            source.assert_invariants()
    source.assert_invariants()
    assert answered > 150
    assert unanswered == 0 or pages < 1000


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_every_node_equals_transformers(family: str) -> None:
    model = random_model(family)
    backend = HFBackend(model, device="cpu", dtype="float32")
    source = DraftModel(backend, k=6, kv_bytes=backend.kv_bytes_per_token * 1500)
    stream = BranchStream(seed=7, vocabulary=97, branches=4)
    plain = plain_model(model)
    assert sum(compare(level, plain, 6)[0] for _, levels in stream.run_rounds(source, 5) for level in levels) > 40
    source.assert_invariants()


def test_the_bundled_draft_equals_transformers() -> None:
    import transformers

    checkpoint = find_model("bundled:draft").source
    writer: Any = load_tokenizer(find_model("bundled:target").source)
    source = DraftModelSource("bundled:draft", target_tokenizer=writer, device="cpu", dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    prompt = tuple(
        writer.encode("Question: A sequence starts with 3 and grows by 4. What is its third number?\nSolution:\n")
    )
    texts = [prompt, prompt, (*prompt, *writer.encode("3+4=7.\n\n"))]
    branches = [Branch(i, "", text, i, SamplingParams(), 99) for i, text in enumerate(texts)]
    for _ in range(3):
        state, contexts = source.root_states(branches), [branch.tokens[:] for branch in branches]
        for _ in range(4):
            successors = source.next_tokens(state)
            compare(WalkLevel(state, successors, list(range(len(contexts))), contexts), plain_model(model), 10)
            assert (successors.ids_FK < len(writer)).all()
            rows = np.repeat(np.arange(len(contexts)), 2)[:8]
            tokens = successors.ids_FK[rows, np.arange(len(rows)) % 2]
            state = source.advance(state[rows], tokens)
            contexts = [(*contexts[row], int(token)) for row, token in zip(rows, tokens, strict=True)]
        grown = []
        for i, branch in enumerate(branches):  # accepts one, two and three draft tokens, and one token not drafted
            longest = next((c for c in contexts if c[: len(branch.tokens)] == branch.tokens), branch.tokens)
            longer = (*longest[: len(branch.tokens) + i + 1], 5)
            grown.append(Branch(branch.request_id, "", longer, i, SamplingParams(), 90))
        branches = grown
    source.assert_invariants()


def test_the_dtype_that_is_picked_ranks_tokens_as_float32_does() -> None:
    """On some CPUs it is bfloat16, whose rounding may swap two tokens that are as likely, and no others."""
    writer: Any = load_tokenizer(find_model("bundled:target").source)
    text = (
        "Question: A sequence starts with 3 and grows by 4. What is its third number?\nSolution:\n3+4=7.\n\n7+4=11.\n\n"
    )
    ids = tuple(writer.encode(text))
    branches = [Branch(i, "", ids[:length], i, SamplingParams(), 99) for i, length in enumerate(range(8, len(ids)))]
    sources = [DraftModelSource("bundled:tiny_draft", device="cpu", dtype=dtype) for dtype in ("float32", "auto")]
    exact, picked = (source.next_tokens(source.root_states(branches)) for source in sources)
    logp_FV = [dict(zip(*row, strict=True)) for row in zip(exact.ids_FK.tolist(), exact.logp_FK.tolist(), strict=True)]
    for row, best in enumerate(picked.ids_FK[:, 0].tolist()):
        assert logp_FV[row][best] == pytest.approx(exact.logp_FK[row, 0], abs=0.15)
        assert picked.logp_FK[row, 0] == pytest.approx(exact.logp_FK[row, 0], abs=0.15)


def test_the_dtype_that_is_picked_keeps_a_model_compiled(tmp_path: Path) -> None:
    """Of a width that is no multiple of 32 float32 alone runs compiled."""
    tiny = Path(find_model("bundled:tiny_draft").source)
    for file in tiny.glob("tokenizer*"):
        copy(file, tmp_path)
    random_model("llama", hidden_size=48, vocab_size=576).save_pretrained(tmp_path)
    sources = [DraftModelSource(str(tmp_path), device="cpu", dtype=dtype) for dtype in ("float32", "auto")]
    branches = [Branch(0, "", (5, 6, 7), 0, SamplingParams(), 9)]
    exact, picked = (source.draft_levels(branches, *FIRST_CALL) for source in sources)
    assert (picked is None) == (exact is None)


def test_siblings_read_their_prompt_once_and_accepted_nodes_are_not_fed_again() -> None:
    source = DraftModel(HashBackend(), kv_bytes=4000)
    prompt = tuple(range(20))
    branches = [Branch(i, "", prompt, i, SamplingParams(), 99) for i in range(4)]
    state = source.root_states(branches)
    assert source.num_fed_tokens == 20 + 3
    tokens = source.next_tokens(state).ids_FK[:, 0]
    below = source.advance(state, tokens)
    following = source.next_tokens(below).ids_FK[:, 0]
    assert source.num_fed_tokens == 23 + 4
    pairs = zip(branches, tokens.tolist(), following.tolist(), strict=True)
    grown = [Branch(b.request_id, "", (*prompt, one, two), 0, SamplingParams(), 97) for b, one, two in pairs]
    source.root_states(grown)
    assert source.num_fed_tokens == 27 + 4, "only the token after the guess that was kept"
    forks = [Branch(10 + i, "", grown[0].tokens, 0, SamplingParams(), 97) for i in range(3)]
    source.root_states(forks)
    assert source.num_fed_tokens == 31 + 3, "a fork of a branch that is gone finds what that one read"
    source.assert_invariants()


def test_a_branch_beyond_the_cache_gets_no_draft_and_the_others_do() -> None:
    backend = HashBackend()
    backend.max_positions = 30
    source = DraftModel(backend, kv_bytes=400)
    texts = [(1, 2, 3), (5,) * 31, (4, 40), (6,) * 30, (7,) * 29]
    state = source.root_states([Branch(i, "", text, 0, SamplingParams(), 9) for i, text in enumerate(texts)])
    assert (source.next_tokens(state).ids_FK[:, 0] >= 0).tolist() == [True, False, False, True, True]
    below = source.advance(state, np.array([1, 1, 1, 1, 1]))
    assert (source.next_tokens(below).ids_FK[:, 0] >= 0).tolist() == [True, False, False, False, True]
    assert (source.next_tokens(source.advance(state, np.array([77] * 5))).ids_FK == -1).all()
    source.assert_invariants()


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_a_forward_that_breaks_leaves_a_source_that_works(fail_at: int) -> None:
    backend = HashBackend()
    backend.fail_at = fail_at
    source = DraftModel(backend, k=5, kv_bytes=4000)
    with pytest.raises(RuntimeError, match="the toy broke"):
        for _ in BranchStream(seed=8).run_rounds(source, 9):
            pass
    source.assert_invariants()
    for _, levels in BranchStream(seed=8).run_rounds(source, 9):
        for level in levels:
            assert compare(level, plain_toy, 5)[1] == 0
    source.assert_invariants()


def test_another_vocabulary_is_refused_naming_both(tiny_writer: Any) -> None:
    writer = load_tokenizer(str(tiny_writer))
    with pytest.raises(
        ValueError, match="bundled:draft cannot draft tokens for the tiny one, their vocabularies differ: token"
    ):
        DraftModelSource("bundled:draft", target_tokenizer=writer, target_path="the tiny one")


def test_wrong_knobs_are_named() -> None:
    for name in ("k", "kv_bytes", "max_batched_tokens", "max_running_requests"):
        with pytest.raises(ValueError, match=f"{name} must be an int >= 1, got 0"):
            DraftModel(HashBackend(), **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="vocab_size must be an int >= 1 or null, got 0"):
        DraftModel(HashBackend(), vocab_size=0)
    with pytest.raises(ValueError, match="kv_mib must be an int >= 1, got 0"):
        DraftModelSource("bundled:draft", kv_mib=0)
    with pytest.raises(ValueError, match=r"speculation\.path=bundled:giant: not among the bundled models"):
        DraftModelSource("bundled:giant")


def test_more_candidates_than_the_model_has_tokens() -> None:
    """Those of a text are as many as there are; those of a node that was accepted have room for all k."""
    source = DraftModel(HashBackend(), k=500, kv_bytes=4000)
    answered = 0
    for _, levels in BranchStream(seed=6).run_rounds(source, 12):
        answered += sum(int((level.next_tokens.ids_FK[:, 0] >= 0).sum()) for level in levels)
    assert answered > 50
