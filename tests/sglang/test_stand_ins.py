"""What stands in for SGLang's compiled rule leaves the target's distribution as it is. Needs no SGLang."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
import torch
from scipy.stats import chisquare

from decoding.sglang_plugin import CPU_STAND_INS

# Node 0 is the last committed token; 1, 2 and 3 are below it, 4 below 1. Node 3 repeats node 1, as padding does.
TOKENS, CHILD, SIBLING = [9, 1, 3, 1, 0], [1, 4, -1, -1, -1], [-1, 2, 3, -1, -1]
MANY = 6000


@pytest.fixture(scope="module")
def stand_in() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tree_sampling", CPU_STAND_INS / "sgl_kernel" / "tree_sampling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sample_tree_draws_tokens_from_the_targets_distribution(stand_in: ModuleType) -> None:
    nodes = len(TOKENS)
    random = torch.Generator().manual_seed(7)
    p_NV = torch.rand(nodes, 5, generator=random).softmax(-1)
    rows_BN = torch.arange(MANY * nodes).view(MANY, nodes)
    next_tokens = torch.zeros(MANY * nodes, dtype=torch.int32)
    accepted_BN = torch.full((MANY, nodes), -1, dtype=torch.int32)
    count_B = torch.zeros(MANY, dtype=torch.int32)
    stand_in.sample_tree(
        predicts=next_tokens,
        accept_index=accepted_BN,
        accept_token_num=count_B,
        candidates=torch.tensor(TOKENS).repeat(MANY, 1),
        retrive_index=rows_BN,
        retrive_next_token=torch.tensor(CHILD).repeat(MANY, 1),
        retrive_next_sibling=torch.tensor(SIBLING).repeat(MANY, 1),
        uniform_samples=torch.rand(MANY, nodes, generator=random),
        uniform_samples_for_final_sampling=torch.rand(MANY, generator=random),
        target_probs=p_NV.expand(MANY, nodes, 5),
        threshold_single=1.0,
        threshold_acc=1.0,
    )
    assert ((accepted_BN >= 0).sum(-1) == count_B + 1).all()
    texts = [[int(next_tokens[row]) for row in rows if row >= 0] for rows in accepted_BN.tolist()]
    after = {(): p_NV[0], (1,): p_NV[1], (3,): p_NV[2], (1, 0): p_NV[4]}
    for start, p_V in after.items():
        following = [text[len(start)] for text in texts if tuple(text[: len(start)]) == start]
        assert len(following) > 100
        token_counts = torch.bincount(torch.tensor(following), minlength=5)
        assert chisquare(token_counts, (p_V.double() / p_V.double().sum() * len(following)).numpy()).pvalue > 1e-4


def test_keep_top_k_and_keep_top_p_renormalise_the_remaining_tokens(stand_in: ModuleType) -> None:
    p_RV = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.1, 0.4, 0.2, 0.3]])
    few = stand_in.keep_top_k(p_RV, torch.tensor([1, 1 << 30], dtype=torch.int32))
    assert few.tolist()[0] == [0, 1, 0, 0]
    assert torch.allclose(few[1], p_RV[1])
    likely = stand_in.keep_top_p(p_RV, torch.tensor([0.6, 0.8]))
    assert torch.allclose(likely, torch.tensor([[0, 4 / 7, 0, 3 / 7], [0, 4 / 9, 2 / 9, 3 / 9]]))


def test_uses_greedy_only_for_greedy_batches(stand_in: ModuleType) -> None:
    assert stand_in.uses_greedy(is_all_greedy=True, is_cpu=True)
    assert not stand_in.uses_greedy(is_all_greedy=False, is_cpu=True)
