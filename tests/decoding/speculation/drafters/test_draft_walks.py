"""Walks build the tree that their score asks for, within every plan; the greedy path is where they begin."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from decoding.core import Tokens
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.draft_walks import WalkDrafter
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan
from tests.support.draft_sources import FakeSource, branch, paths, random_branches


def propose(source: FakeSource, branches: list[Branch], nodes: int = 1000, **knobs: Any) -> list[Draft]:
    plan = DraftPlan((nodes,) * len(branches), nodes * len(branches))
    return WalkDrafter(source, **knobs).propose(branches, plan)


def walk_by_hand(source: FakeSource, context: Tokens, walks: int, length: int, c: float, horizon: float) -> set[Tokens]:
    """All paths of the walks, with a table of counts by path."""
    visits: dict[Tokens, int] = {}
    for _ in range(walks):
        path: Tokens = ()
        for _ in range(length):
            table, n = source.table(context + path), visits.get(path, 0)
            if not table:
                break

            def score(token: int, table: dict[int, float] = table, n: int = n, path: Tokens = path) -> float:
                weight = c + (math.log((n + horizon + 1) / horizon) if c else 0)
                return table[token] * (1 + math.sqrt(n) / (1 + visits.get((*path, token), 0)) * weight)

            path = (*path, max(table, key=score))
        for n in range(len(path) + 1):
            visits[path[:n]] = visits.get(path[:n], 0) + 1
    return {path for path in visits if path}


@pytest.mark.parametrize(("c", "horizon"), [(0.0, 100.0), (1.25, 19652.0), (3.0, 2.0)])
def test_trees_equal_walks_by_hand(c: float, horizon: float) -> None:
    rng, sizes = random.Random(0), list[int]()
    for seed in range(12):
        source = FakeSource(vocabulary=6, known=5, reads=1 + seed % 3, scarce=seed % 2 == 0)
        branches = [branch(one.tokens[:], i) for i, one in enumerate(random_branches(rng, 3, vocabulary=6))]
        drafts = propose(source, branches, walks=12, length=5, exploration=c, horizon=horizon)
        got = paths(drafts)
        for b, (one, draft) in enumerate(zip(branches, drafts, strict=True)):
            draft.assert_invariants()
            assert {path for at, path in got if at == b} == walk_by_hand(source, one.tokens[:], 12, 5, c, horizon)
            sizes.append(len(draft))
        for (b, path), p in got.items():
            context = branches[b].tokens[:]
            expected = math.prod(source.table(context + path[:n])[path[n]] for n in range(len(path)))
            assert p == pytest.approx(expected, rel=1e-4)
    assert max(sizes) == 5 if c == 0 else max(sizes) > 10, "without exploration the greedy path alone"


def test_trees_keep_to_the_plan() -> None:
    rng, source = random.Random(1), FakeSource(vocabulary=6, known=6)
    drafter, num_nodes = WalkDrafter(source, walks=20, length=6), 0
    for _ in range(40):
        branches = random_branches(rng, 3, vocabulary=6)
        most = tuple(rng.randint(0, 9) for _ in branches)
        total = rng.randint(0, 20)
        estimate = CostEstimate.along_line(1.0, rng.choice([0.01, 0.3]), total) if rng.random() < 0.5 else None
        least = tuple(rng.choice([0.05, 0.3]) for _ in branches) if rng.random() < 0.5 else ()
        drafts = drafter.propose(branches, DraftPlan(most, total, estimate, least_probabilities=least))
        assert sum(map(len, drafts)) <= total
        for b, (one, draft) in enumerate(zip(branches, drafts, strict=True)):
            draft.assert_invariants()
            assert len(draft) <= most[b]
            assert max(draft.depths, default=0) <= max(one.remaining - 1, 0)
            assert not least or all(p >= least[b] for p in draft.path_probabilities)
            num_nodes += len(draft)
    assert num_nodes > 100


def test_of_more_nodes_than_pay_the_likeliest_of_the_batch_remain() -> None:
    source, branches = FakeSource(vocabulary=6, known=6), [branch((i, 1), i) for i in range(4)]
    whole = paths(propose(source, branches, walks=20, length=4))
    estimate = CostEstimate.along_line(1.0, 0.05, 200)
    kept_paths = paths(WalkDrafter(source, walks=20, length=4).propose(branches, DraftPlan((200,) * 4, 200, estimate)))
    count = estimate.count_worthwhile(np.array(sorted(whole.values(), reverse=True)), 4)
    assert 0 < count < len(whole)
    assert sorted(kept_paths.values()) == sorted(whole.values())[-count:]


def test_wrong_knobs_are_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"draw": "coupled"}, "draw must be one of likely; got 'coupled'"),
        ({"walks": 0}, "walks must be an int >= 1, got 0"),
        ({"length": 0}, "length must be an int >= 1, got 0"),
        ({"exploration": -1.0}, "exploration must be a number >= 0, got -1.0"),
        ({"horizon": 0.0}, "horizon must be a number > 0, got 0.0"),
    ]
    for knobs, message in wrong:
        with pytest.raises(ValueError, match=message):
            WalkDrafter(FakeSource(), **knobs)
    with pytest.raises(ValueError, match="PromptLookup only ranks its candidates"):
        WalkDrafter(PromptLookup())
