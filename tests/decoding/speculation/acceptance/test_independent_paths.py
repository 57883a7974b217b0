"""Independent paths below a trunk (delayed trees): lossless under all rules of independent draws, by enumeration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from decoding.speculation.acceptance.k_sequential import KSequential
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_iid import RecursiveIid
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.uniform_stream import UniformStream
from decoding.speculation.acceptance.verify import TreeRule
from decoding.speculation.draft import Draft, SamplingRecord
from tests.support.acceptance_rules import CAUGHT, change_record, id_of
from tests.support.enumeration import Instance, Report, enumerate_drafts
from tests.support.random_shapes import Q

RULES: list[TreeRule] = [Traversal(), RecursiveIid(), KSequential(), PointMass()]


def draw_paths(q: Q, stream: UniformStream, *, trunk: int, paths: int, length: int) -> Draft:
    """Draws a path of `trunk` tokens and `paths` independent ones of `length` below it; equal prefixes are one node."""
    nodes: dict[tuple[int, ...], int] = {(): -1}
    children: dict[int, list[int]] = {}

    def draw_path(start: tuple[int, ...], count: int) -> tuple[int, ...]:
        path = start
        for _ in range(count):
            parent, path = nodes[path], (*path, stream.sample_index(q[path]))
            node = nodes.setdefault(path, len(nodes) - 1)
            children.setdefault(parent, []).append(node)
        return path

    below = draw_path((), trunk)
    for _ in range(paths):
        draw_path(below, length)
    drawn = list(nodes)[1:]
    record = SamplingRecord(
        "iid",
        {node: tuple(order) for node, order in children.items()},
        {node: (np.arange(len(q[path])), q[path]) for path, node in nodes.items() if node in children},
    )
    draft = Draft(tuple(p[-1] for p in drawn), tuple(nodes[p[:-1]] for p in drawn), sampling_record=record)
    draft.assert_invariants()
    return draft


def report(
    rule: TreeRule,
    shape: tuple[int, int, int],
    seed: int,
    tamper: Callable[[Draft], Draft] = lambda draft: draft,
) -> Report:
    trunk, paths, length = shape
    instance = Instance.random(seed, length=trunk + length + 1, vocabulary=2 if trunk + length > 2 else 3, number=float)

    def draw_draft(stream: UniformStream) -> Draft:
        return tamper(draw_paths(instance.q, stream, trunk=trunk, paths=paths, length=length))

    return enumerate_drafts(instance, draw_draft, rule.verify_tree)


@pytest.mark.parametrize(
    "shape", [(0, 2, 1), (0, 3, 1), (0, 2, 2), (1, 2, 1), (2, 0, 0), (1, 2, 2), (0, 3, 2)], ids=str
)
@pytest.mark.parametrize("rule", RULES, ids=id_of)
def test_the_next_tokens_are_distributed_as_the_targets(rule: TreeRule, shape: tuple[int, int, int]) -> None:
    assert report(rule, shape, seed=1).distance < 1e-12


@pytest.mark.parametrize("shape", [(0, 3, 1), (0, 3, 2)], ids=str)
def test_a_repeated_draw_that_is_dropped_is_caught(shape: tuple[int, int, int]) -> None:
    def drop_repeats(draft: Draft) -> Draft:
        record = draft.sampling_record
        assert record is not None
        return change_record(draft, children={at: tuple(dict.fromkeys(some)) for at, some in record.children.items()})

    assert any(report(Traversal(), shape, seed, drop_repeats).distance > CAUGHT for seed in range(6))


def test_traversal_accepts_most_as_published() -> None:
    """The study of Delayed Tree Expansion has traversal above the other rules, on average."""
    means = {id_of(rule): np.mean([report(rule, (1, 3, 1), seed).mean_accepted for seed in range(4)]) for rule in RULES}
    assert sorted(means, key=lambda name: -means[name])[0] == "Traversal"
    assert means["PointMass"] == min(means.values())


@pytest.mark.parametrize("rule", RULES, ids=id_of)
@pytest.mark.parametrize("depth", [0, 1])
def test_paths_that_lose_their_last_level_are_lossless_too(rule: TreeRule, depth: int) -> None:
    """As where a request has room for fewer levels than were drafted."""
    for seed in range(2):
        cut = report(rule, (0, 2, 2), seed, lambda draft: draft.truncate_to(nodes=len(draft), depth=depth))
        assert cut.distance < 1e-9
