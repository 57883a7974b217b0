"""Candidates of a server's draft worker as a draft source, and merged trees in its own form, without SGLang."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import SamplingParams, Tokens
from decoding.sglang_plugin import CPU_STAND_INS
from decoding.sglang_plugin.candidates import CandidateLists, CandidateTrees, encode_trees
from decoding.sglang_plugin.parts import make_fused_parts
from decoding.sglang_plugin.trees import flatten_trees
from decoding.speculation.draft import Draft
from decoding.speculation.interfaces import Branch, Feedback
from tests.support.draft_sources import FakeSource

SEEDS = st.integers(0, 2**31)


def branches(count: int, *, temperature: float = 1.0) -> list[Branch]:
    params = SamplingParams(temperature=temperature)
    return [Branch(i, "p", (3, 1, 4 + i), 7 + i, params, 99) for i in range(count)]


def draft_step_by_step(source: FakeSource, texts: list[Tokens], topk: int, steps: int) -> CandidateLists:
    """Considers tokens as SGLang's draft worker does: the best `topk` of each path, then the best `topk` paths."""
    parents, scores, tokens = ([[] for _ in texts] for _ in range(3))  # type: ignore[var-annotated]
    for b, text in enumerate(texts):
        paths: list[tuple[Tokens, float, int]] = [(text, 1.0, -1)]
        for step in range(steps):
            first = len(tokens[b])
            considered: list[tuple[Tokens, float, int]] = []
            for path, score, candidate in paths:
                parents[b].append(candidate)
                for token, p in list(source.table(path).items())[:topk]:
                    considered.append(((*path, token), score * p, first + len(considered)))
                    scores[b].append(score * p)
                    tokens[b].append(token)
            if step < steps - 1:
                paths = sorted(considered, key=lambda one: -one[1])[:topk]
    return CandidateLists(np.array(parents), np.array(scores, dtype=np.float32), np.array(tokens))


def known_contexts(lists: CandidateLists, request: int, text: Tokens) -> Iterator[Tokens]:
    """Yields the texts after which the draft worker has looked."""
    size = lists.tokens.shape[1] // lists.parents.shape[1]

    def text_to(candidate: int) -> Tokens:
        group = candidate // size
        above = text if not group else text_to(int(lists.parents[request, group]))
        return (*above, int(lists.tokens[request, candidate]))

    yield text
    for candidate in lists.parents[request, 1:].tolist():
        yield text_to(candidate)


@pytest.mark.parametrize(("topk", "steps"), [(2, 2), (3, 4), (4, 3)])
def test_candidates_have_the_draft_models_probabilities_where_it_has_looked(topk: int, steps: int) -> None:
    source, some = FakeSource(vocabulary=9, known=9), branches(3)
    texts = [tuple(branch.tokens[:]) for branch in some]
    lists, trees = draft_step_by_step(source, texts, topk, steps), CandidateTrees()
    trees.set_round(lists)
    for request, text in enumerate(texts):
        contexts = list(known_contexts(lists, request, text))
        assert len(set(contexts)) == 1 + (steps - 1) * topk
        for context in contexts:
            state = trees.root_states(some)[[request]]
            for token in context[len(text) :]:
                state = trees.advance(state, np.array([token]))
            candidates = trees.next_tokens(state)
            expected = list(source.table(context).items())[:topk]
            assert candidates.ids_FK[0].tolist() == [token for token, _ in expected]
            assert np.exp(candidates.logp_FK[0]) == pytest.approx([p for _, p in expected], rel=1e-4)


def test_where_the_draft_worker_has_not_looked_there_is_no_candidate() -> None:
    source, some = FakeSource(vocabulary=9, known=9), branches(2)
    trees = CandidateTrees()
    trees.set_round(draft_step_by_step(source, [tuple(branch.tokens[:]) for branch in some], 2, 2))
    roots = trees.root_states(some)
    best = trees.next_tokens(roots)
    strange = np.array([next(t for t in range(9) if t not in row) for row in best.ids_FK.tolist()])
    below = trees.advance(trees.advance(roots, best.ids_FK[:, 0]), np.array([0, 1]))  # two levels are known, not three
    for state in (trees.advance(roots, strange), below, trees.advance(below, strange)):
        assert (trees.next_tokens(state).ids_FK == -1).all()
        assert np.isneginf(trees.next_tokens(state).logp_FK).all()


def test_a_path_without_probability_has_no_candidates() -> None:
    trees = CandidateTrees()
    lists = CandidateLists(
        np.array([[-1, 0, 1]]),
        np.array([[0.5, 0, 0.25, 0.125, 0, 0]], dtype=np.float32),
        np.array([[1, 2, 3, 4, 5, 6]]),
    )
    trees.set_round(lists)
    roots = trees.root_states(branches(1))
    assert trees.next_tokens(roots).ids_FK.tolist() == [[1, -1]]
    assert trees.next_tokens(trees.advance(roots, np.array([1]))).ids_FK.tolist() == [[3, 4]]
    assert trees.next_tokens(trees.advance(roots, np.array([2]))).ids_FK.tolist() == [[-1, -1]]


def test_candidates_of_another_batch_are_refused() -> None:
    trees = CandidateTrees()
    with pytest.raises(AssertionError, match="another batch"):
        trees.root_states(branches(2))


def learned_text(text: Tokens, vocabulary: int) -> list[Feedback]:
    """What a drafter gets once a request has written this, every token of it surely."""
    ids = np.array([[token, (token + 1) % vocabulary] for token in text[1:]], dtype=np.int64)
    logp = np.log(np.array([[0.98, 0.01]], dtype=np.float32)).repeat(len(ids), axis=0)
    return [
        Feedback(Branch(90 + i, "p", text[: i + 1], 1, SamplingParams(), 99), Draft(), (), ids[[i]], logp[[i]])
        for i in range(len(ids))
    ]


@pytest.mark.parametrize(("agree", "is_dropped"), [(0.0, False), (0.2, True)])
def test_merged_drafts_are_trees_of_both_and_drop_unlikely_ngrams(agree: float, is_dropped: bool) -> None:
    """The n-grams know one text, 3 1 4 8 8 8 ..., of which the draft model has not even considered the first token."""
    lists = CandidateLists(
        np.array([[-1, 0, 1]]),
        np.array([[0.6, 0.3, 0.4, 0.1, 0.2, 0.05]], dtype=np.float32),
        np.array([[5, 6, 7, 5, 5, 6]]),
    )
    trees = CandidateTrees()
    parts = make_fused_parts(11, trees, levels=2, agree=agree)
    for _ in range(3):
        parts.drafter.observe(learned_text((3, 1, 4, 8, 8, 8, 8, 8), 9))
    trees.set_round(lists)
    (draft,) = parts.draft_trees(branches(1, temperature=0.0))
    draft.assert_invariants()
    paths = {tuple(draft.tokens[node] for node in draft.path_to(node)) for node in range(len(draft))}
    assert {(5,), (5, 7)} <= paths, "the draft model's"
    assert ((8,) in paths) != is_dropped
    assert is_dropped or ((8, 8, 8) in paths), "n-grams go on below the levels of the draft model"


@pytest.fixture(scope="module")
def stand_in() -> ModuleType:
    """SGLang's compiled tree builder in PyTorch, which the tests in `tests/sglang` run in real servers."""
    spec = importlib.util.spec_from_file_location("sgl_kernel_stand_in", CPU_STAND_INS / "sgl_kernel" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_draft(rng: np.random.Generator, most: int) -> Draft:
    parents = [int(rng.integers(-1, i)) for i in range(int(rng.integers(most + 1)))]
    return Draft(tuple(range(10, 10 + len(parents))), tuple(parents))


@given(SEEDS, st.integers(3, 14), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_encoded_trees_are_what_the_server_verifies(stand_in: ModuleType, seed: int, nodes: int, count: int) -> None:
    """The nodes of a draft attend to the same nodes, at the same positions, as in the trees that `Coupled` walks."""
    rng = np.random.default_rng(seed)
    some, drafts = branches(count), [random_draft(rng, nodes - 1) for _ in range(count)]
    flat, encoded = flatten_trees(some, drafts, nodes), encode_trees(drafts, nodes)
    assert encoded.parents.shape == (count, encoded.group_size * (encoded.depth - 1) + 1)
    assert max(encoded.selected.max(), 0) < encoded.group_size * encoded.parents.shape[1]
    lengths = torch.tensor([len(branch.tokens) - 1 for branch in some])
    mask, positions = torch.ones(count * nodes * nodes, dtype=torch.bool), torch.zeros(count * nodes, dtype=torch.long)
    rows, child, sibling = (torch.full((count, nodes), -1) for _ in range(3))
    stand_in.build_tree_kernel_efficient_cpu(
        *(torch.from_numpy(part) for part in (encoded.parents, encoded.selected)),
        *(lengths, mask, positions, rows, child, sibling, encoded.group_size, encoded.depth, nodes, 1),
    )
    attended, visible = (array.reshape(count, nodes, nodes) for array in (mask.numpy(), flat.visible))
    for b, draft in enumerate(drafts):
        used = slice(0, 1 + len(draft))
        assert (attended[b, used] == visible[b, used]).all()
        assert (encoded.tokens[b, : len(draft)] == draft.tokens).all()
        depths = flat.depths.reshape(count, nodes)[b, used]
        assert (positions.view(count, nodes)[b, used].numpy() == depths + int(lengths[b])).all()
        for node in range(1 + len(draft)):  # the links that grammars follow
            children, one = [], int(child[b, node])
            while one >= 0:
                children.append(one)
                one = int(sibling[b, one])
            below = [1 + i for i, parent in enumerate(draft.parents) if parent == node - 1]
            padding = list(range(1 + len(draft), nodes)) if node == 0 else []
            assert children == [*below, *padding]
