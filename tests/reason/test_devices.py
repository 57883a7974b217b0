"""Models, pools, scores and drafts are placed on the GPU, and copied back before NumPy reads them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reason
from reason.config.compose import list_options
from tests.support.acceptance_rules import DRAFT_INDEPENDENT
from tests.support.pretended_gpu import pretended_gpu, real_or_pretended_gpu

QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


def test_pretended_gpu_refuses_the_mixtures_that_a_real_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch):
        there, here = torch.ones(2, 3, device="cuda"), torch.ones(3)
        assert (there[0] * 2).device == there.new_empty(1).device == torch.device("cuda:0") != here.device
        with pytest.raises(RuntimeError, match="1 on the CPU"):
            there + here
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        with pytest.raises(TypeError, match="array"):
            np.asarray(there)
        assert torch.equal((there + here.to(there)).cpu(), torch.full((2, 3), 2.0))


def texts(*overrides: str) -> list[str]:
    """The texts of the search, leaf by leaf."""
    with reason.load("search.n=2", "engine.dtype=float32", *overrides) as solver:
        tree = solver.solve(QUESTION).tree
        return [tree.path_text(leaf) for leaf in tree.leaf_nodes()]


@pytest.mark.parametrize(
    "chosen",
    [
        ["speculation=off"],
        ["search=ets", "speculation=stand_draft_model"],
        ["search=rebase", "speculation=suffix", "router=arbitrage", "router.dtype=float32", "small.dtype=float32"],
        ["search=rebase", "router=entropy", "small.dtype=float32", "speculation=off", "scorer=likelihood"],
        *(["speculation=stand", "controller=chain", f"acceptance={rule}"] for rule in DRAFT_INDEPENDENT),
    ],
    ids=" ".join,
)
def test_search_on_the_gpu_has_the_texts_of_the_cpu(chosen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = texts("engine.device=cpu", *chosen)
    with real_or_pretended_gpu(monkeypatch):
        assert texts("engine.device=cuda", *chosen) == expected


@pytest.mark.parametrize("rule", [rule for rule in list_options("acceptance") if rule not in DRAFT_INDEPENDENT])
def test_rejection_on_the_gpu_repeats_the_texts_of_a_branch_alone(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the CPU, where the drafter learns a round earlier; nor those of branches side by side.

    Each branch of a search arrives by itself. How many rounds after the first the second one joins, and so what is
    drafted for either, is a matter of when the operating system runs which thread.
    """
    chosen = ["engine.device=cuda", "speculation=stand", "controller=chain", f"acceptance={rule}"]
    with real_or_pretended_gpu(monkeypatch):
        assert len(texts(*chosen)) == 2
        alone = [*chosen, "search.n=1"]
        assert texts(*alone) == texts(*alone)
