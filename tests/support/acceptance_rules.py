"""The acceptance rules, and exact reports of the tokens they accept, for their tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from decoding.core import SamplingParams
from decoding.sampling_batch import SamplingBatch
from decoding.speculation.acceptance.coupled import Coupled
from decoding.speculation.acceptance.greedy_match import GreedyMatch
from decoding.speculation.acceptance.k_sequential import KSequential
from decoding.speculation.acceptance.point_mass import PointMass
from decoding.speculation.acceptance.recursive_iid import RecursiveIid
from decoding.speculation.acceptance.recursive_rejection import RecursiveRejection
from decoding.speculation.acceptance.traversal import Traversal
from decoding.speculation.acceptance.uniform_stream import SeededUniformStream, UniformStream, Vector
from decoding.speculation.acceptance.verify import TreeRule
from decoding.speculation.draft import Draft, DraftSampling, VerifyResult
from decoding.speculation.interfaces import AcceptanceRule, Branch
from decoding.speculation.target_logits import TargetLogits
from tests.support.enumeration import (
    Instance,
    Report,
    VerifyTree,
    draw_tree,
    enumerate_drafts,
    tokens_after,
)

KINDS: tuple[DraftSampling, ...] = ("coupled", "likely", "without_replacement", "iid")
NO: DraftSampling = "without_replacement"
CAUGHT = 1e-3  # total variation on the max_distance instance

REJECTION: list[TreeRule] = [RecursiveRejection(), Traversal(), RecursiveIid(), KSequential()]
SAMPLING: list[TreeRule] = [*REJECTION, PointMass()]
ALL: list[AcceptanceRule] = [*SAMPLING, GreedyMatch(), Coupled()]

DRAFT_INDEPENDENT = ("coupled", "greedy_match")
"""Rules by which a seed has the same text whatever was drafted. By the others the text depends on it, by most of them
above temperature 0 only, and so on what other branches had written by then, which is a matter of timing."""


def id_of(value: Any) -> str:
    return type(value).__name__ if hasattr(value, "supported_sampling") else str(value)


def enumerate_reports(
    verify_tree: VerifyTree,
    kind: DraftSampling,
    fans: Sequence[int],
    *,
    seeds: Iterable[int],
    vocabulary: int = 3,
    number: type = Fraction,
    tamper: Callable[[Draft], Draft] = lambda draft: draft,
) -> list[Report]:
    """One report for each instance, with drafts changed by `tamper` before verification."""
    reports = []
    for seed in seeds:
        instance = Instance.random(seed, vocabulary=vocabulary, length=len(fans) + 1, number=number)

        def draw_draft(stream: UniformStream, instance: Instance = instance) -> Draft:
            return tamper(draw_tree(kind, fans, instance.q, stream))

        reports.append(enumerate_drafts(instance, draw_draft, verify_tree))
    return reports


def assert_lossless(
    rule: TreeRule, kind: DraftSampling, fans: Sequence[int], *, seeds: Iterable[int], vocabulary: int = 3
) -> None:
    """The law is the target's: to the last bit, or to 1e-12 for k_sequential with its irrational threshold."""
    exact = not isinstance(rule, KSequential)
    number = Fraction if exact else float
    reports = enumerate_reports(rule.verify_tree, kind, fans, seeds=seeds, vocabulary=vocabulary, number=number)
    assert max_distance(reports) <= (0 if exact else 1e-12)


def max_distance(reports: list[Report]) -> float:
    return max(report.distance for report in reports)


def mean_accepted(reports: list[Report]) -> float:
    return float(np.mean([report.mean_accepted for report in reports]))


def change_record(draft: Draft, **changes: Any) -> Draft:
    assert draft.sampling_record is not None
    return replace(draft, sampling_record=replace(draft.sampling_record, **changes))


def make_target(
    instance: Instance, drafts: Sequence[Draft], params: SamplingParams, *, seed: int = 0, prefix: int = 4
) -> tuple[list[Branch], TargetLogits]:
    """Returns a branch for every draft, and the target's logits of all of them."""
    rows: list[Vector] = []
    branches, first, positions = [], [], []
    for i, draft in enumerate(drafts):
        branches.append(Branch(i, "", (0,) * prefix, seed + i, params, 99))
        first.append(len(rows))
        rows += [instance.p[tokens_after(draft, node)] for node in range(-1, len(draft))]
        positions += [prefix + depth for depth in (0, *draft.depths)]
    logits = torch.tensor(np.log(np.maximum(np.array(rows, dtype=np.float64), 1e-30)), dtype=torch.float32)
    seeds = [branch.seed for branch, draft in zip(branches, drafts, strict=True) for _ in range(1 + len(draft))]
    return branches, TargetLogits(
        logits, SamplingBatch.from_params([params] * len(rows), seeds, positions), tuple(first)
    )


def sample_drafts(kind: DraftSampling, fans: Sequence[int], instance: Instance, count: int) -> list[Draft]:
    return [draw_tree(kind, fans, instance.q, SeededUniformStream(10**9 + i, 0)) for i in range(count)]


def verify_with(rule: AcceptanceRule, instance: Instance, drafts: Sequence[Draft], **knobs: Any) -> list[VerifyResult]:
    branches, target = make_target(instance, drafts, knobs.pop("params", SamplingParams()), **knobs)
    return rule.verify_drafts(branches, drafts, target)
