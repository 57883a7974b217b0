"""Drafts of a compiled draft model in one call: the same as level by level, whatever branches, limits and weights."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from decoding.core import SamplingParams
from decoding.model.compiled_layers import size_most_rows, size_rounded_rows, size_rows
from decoding.model.transformers_checkpoint import HFBackend
from decoding.speculation.draft import DraftSampling
from decoding.speculation.drafters import level_kernels
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.model_drafts import ModelDrafts
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan
from tests.support.draft_sources import paths
from tests.support.random_models import random_model
from tests.support.shared_beginnings import NEEDS_BFLOAT16
from tests.support.streams import BranchStream

PARAMS = [
    SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
    for temperature, top_p, top_k in [(1.0, 1.0, 0), (0.6, 0.9, 0), (1.3, 1.0, 4), (0.0, 1.0, 0)]
]
STAIRS = CostEstimate(np.float64(0.1) + 0.03 * (np.arange(41) // 8), (*range(7, 41, 8), 40))


def line(round_seconds: float, seconds_per_node: float) -> CostEstimate:
    return CostEstimate.along_line(round_seconds, seconds_per_node, 40)


COSTS = [None, line(0.1, 0.0), line(0.1, 0.002), line(0.1, 0.02), STAIRS, replace(STAIRS, keep_gain=0.9)]


def backend(family: str = "qwen2", vocab_size: int = 97, **settings: Any) -> HFBackend:
    model = random_model(family, vocab_size=vocab_size)
    return HFBackend(model, device="cpu", decoder="compiled", **{"dtype": "float32", **settings})


def random_plan(rng: random.Random, branches: list[Branch], most: int) -> DraftPlan:
    total = rng.randint(0, most)
    nodes = tuple(rng.choice([total, rng.randint(0, 5)]) for _ in branches)
    least = tuple(rng.random() * 0.3 for _ in branches) if rng.random() < 0.2 else ()
    # those of the costs end at 40 nodes
    return DraftPlan(nodes, total, rng.choice(COSTS) if most <= 40 else None, least_probabilities=least)


def with_params(branch: Branch) -> Branch:
    request_id, group, tokens, seed, _, remaining = branch
    return Branch(request_id, group, tokens, seed, PARAMS[request_id % len(PARAMS)], remaining)


def compare_rounds(
    fast: DraftModel,
    slow: DraftModel,
    draw: DraftSampling,
    seed: int,
    rounds: int = 30,
    most: int = 40,
    width: int = 3,
    depth: int = 5,
) -> int:
    """Returns the nodes that both drafted."""
    stream, rng, drafted = BranchStream(seed, vocabulary=97), random.Random(seed), 0
    called, levels = (TreeDrafter(source, draw, width=width, depth=depth) for source in (fast, slow))
    levels.model = None
    for _ in range(rounds):
        branches = [with_params(branch) for branch in stream.next_round()]
        plan = random_plan(rng, branches, most)
        called.level_seconds = levels.level_seconds = 0.0  # drafting takes no time
        drafts = called.propose(branches, plan)
        got, expected = paths(drafts), paths(levels.propose(branches, plan))
        np.testing.assert_allclose(sorted(got.values()), sorted(expected.values()), rtol=1e-4)
        least = min(got.values(), default=0.0)  # of equals at the end either may take any
        assert all((got | expected)[path] == pytest.approx(least, rel=1e-4) for path in got.keys() ^ expected.keys())
        drafted += len(got)
        feedback = stream.commit_random(fast, branches, drafts)
        called.observe(feedback)
        levels.observe(feedback)
    fast.assert_invariants()
    return drafted


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that has an entry for each call from now on."""
    calls, draft = list[int](), level_kernels.draft_levels

    def count_call(*arguments: Any) -> ModelDrafts:
        calls.append(len(arguments))
        return draft(*arguments)

    monkeypatch.setattr(level_kernels, "draft_levels", count_call)
    return calls


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("draw", ["coupled", "likely"])
@pytest.mark.parametrize("seed", range(2))
def test_drafts_are_those_of_levels(family: str, draw: DraftSampling, seed: int) -> None:
    fast, slow = (DraftModel(backend(family), k=5, kv_bytes=1 << 22) for _ in range(2))
    assert compare_rounds(fast, slow, draw, seed) > 100


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({"k": 500}, {}),
        ({"vocab_size": 40}, {}),
        ({"head_ids": np.array([3, 4, 9, 20, 21, 60, 96])}, {"head_ids": [3, 4, 9, 20, 21, 60, 96]}),
        ({"max_batched_tokens": 9}, {}),
        ({}, {"vocab_size": 128}),  # rows of logits without room between them
        pytest.param({}, {"dtype": "bfloat16"}, marks=NEEDS_BFLOAT16),
    ],
    ids=["k", "vocab_size", "head_ids", "max_batched_tokens", "full_panels", "bfloat16"],
)
def test_drafts_are_those_of_levels_with_every_setting(settings: dict[str, Any], model: dict[str, Any]) -> None:
    fast, slow = (DraftModel(backend(**model), kv_bytes=1 << 22, **settings) for _ in range(2))
    assert compare_rounds(fast, slow, "coupled", 7) > 100


def test_large_drafts_are_those_of_levels() -> None:
    """Passes of more rows than go through a layer together, and of branches that have thousands of candidates."""
    fast, slow = (DraftModel(backend(), k=8, kv_bytes=1 << 24) for _ in range(2))
    assert compare_rounds(fast, slow, "coupled", 5, rounds=12, most=400, width=8) > 1000


def test_deep_drafts_are_those_of_levels() -> None:
    """Where of the nodes of a level only some are fed."""
    fast, slow = (DraftModel(backend(), k=8, kv_bytes=1 << 24) for _ in range(2))
    assert compare_rounds(fast, slow, "coupled", 6, width=8, depth=30) > 100


@pytest.mark.parametrize("is_called", [True, False])
def test_improbable_children_do_not_end_a_draft_early(is_called: bool) -> None:
    drafter = TreeDrafter(DraftModel(backend(), k=8, kv_bytes=1 << 24), width=8, depth=40)
    drafter.model = drafter.model if is_called else None
    params = SamplingParams(temperature=0.1)  # every token has a likely next one, and seven that are not
    branches = [Branch(i, "", (i, 5, 7), i, params, 60) for i in range(16)]
    drafts = drafter.propose(branches, DraftPlan((20,) * 16, 160))
    depths = [max(len(draft.path_to(node)) for node in range(len(draft))) for draft in drafts]
    assert sum(map(len, drafts)) == 160
    assert sum(depths) > 0.6 * 160


def test_memory_for_many_rows_is_enough_for_fewer() -> None:
    parts = backend().compiled_parts
    assert parts is not None
    shapes, _, matrices = parts[0].list_arrays(1, 1, 1)[:3]
    for most in (1, 127, 128, 129, 160, 256, 288, 400):
        sizes = [size_rows(shapes, 1, 1, rows, 50)[0] for rows in range(1, most + 1)]
        assert size_most_rows(shapes, most, 50) == max(sizes)
        rounded = [size_rounded_rows(shapes, matrices, 1, rows) for rows in range(1, most + 1)]
        assert rounded[-1] == max(rounded)


def test_a_branch_that_waits_has_no_draft_and_no_slots() -> None:
    source = DraftModel(backend(), k=5, kv_bytes=1 << 22, max_running_requests=1)
    drafter = TreeDrafter(source, width=2, depth=4)
    branches = [Branch(i, "", (i, 5, 7), i, SamplingParams(), 20) for i in range(3)]
    for _ in range(3):
        sizes = list(map(len, drafter.propose(branches, DraftPlan((4,) * 3, 12))))
        assert sizes[0] > 0
        assert sizes[1:] == [0, 0]
    drafter.propose(branches[1:], DraftPlan((4, 4), 8))
    source.assert_invariants()


def test_prefixes_that_have_ended_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    model = backend()
    source = DraftModel(model, k=5, kv_bytes=400 * model.kv_bytes_per_token)
    drafter, calls = TreeDrafter(source, width=2, depth=4), count_calls(monkeypatch)
    for number in range(12):
        branch = Branch(number, "", tuple(range(number, number + 60)), number, SamplingParams(), 20)
        (draft,) = drafter.propose([branch], DraftPlan((4,), 4))
        assert len(draft) > 0
    assert len(calls) == 12
    source.assert_invariants()


def test_where_memory_runs_out_levels_draft_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    source = DraftModel(backend(), k=5, kv_bytes=1 << 22)
    drafter, branch = TreeDrafter(source, width=2, depth=4), Branch(0, "", (1, 2, 3), 0, SamplingParams(), 20)

    def run_out(*arguments: Any) -> ModelDrafts:
        raise MemoryError

    monkeypatch.setattr(level_kernels, "draft_levels", run_out)
    with pytest.raises(MemoryError):
        drafter.propose([branch], DraftPlan((4,), 4))
    (draft,) = drafter.propose([branch], DraftPlan((4,), 4))
    assert len(draft) > 0
    source.assert_invariants()


def test_one_call_is_made_for_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = (DraftModel(backend(), k=5, kv_bytes=1 << 22) for _ in range(2))
    calls = count_calls(monkeypatch)
    compare_rounds(fast, slow, "coupled", 1, rounds=10)
    assert 5 < len(calls) <= 10  # none for a round without nodes


@pytest.mark.parametrize("seed", range(4))
def test_branches_at_the_window_leave_room_for_others(seed: int) -> None:
    model = random_model("qwen2", vocab_size=97, max_position_embeddings=60)
    fast, slow = (
        TreeDrafter(DraftModel(HFBackend(model, device="cpu", decoder="compiled"), k=8), width=8, depth=30)
        for _ in range(2)
    )
    slow.model = None
    rng = random.Random(seed)
    lengths = [rng.choice([20, 56, 58]) for _ in range(6)]
    branches = [
        Branch(i, "", tuple(rng.randrange(97) for _ in range(length)), i, SamplingParams(), 40)
        for i, length in enumerate(lengths)
    ]
    got, expected = (paths(drafter.propose(branches, DraftPlan((64,) * 6, 64))) for drafter in (fast, slow))
    assert got.keys() == expected.keys()


def test_a_window_ends_drafts() -> None:
    source = DraftModel(HFBackend(random_model("qwen2", max_position_embeddings=40), device="cpu", decoder="compiled"))
    branch = Branch(0, "", tuple(range(38)), 0, SamplingParams(), 20)
    (draft,) = TreeDrafter(source, width=2, depth=9).propose([branch], DraftPlan((40,), 40))
    # position 38 and 39 can be fed, and give a token after them
    assert max(len(draft.path_to(node)) for node in range(len(draft))) == 3


def test_where_slots_are_few_levels_draft() -> None:
    model = backend()
    fast, slow = (DraftModel(model, k=5, kv_bytes=450 * model.kv_bytes_per_token) for _ in range(2))
    assert compare_rounds(fast, slow, "coupled", 3) > 50
