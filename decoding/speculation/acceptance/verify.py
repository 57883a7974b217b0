"""Base classes of acceptance rules for one tree, and their application to all drafts of a round.

A rule verifies one draft given p after any node and a uniform stream: it returns the accepted nodes and the token after
them. Most rules go from the root down and look at the children of one node at a time.

Shapes: W logits rows, N committed tokens, V vocabulary, K ids that a drafter drew from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from decoding.speculation.acceptance.uniform_stream import SeededUniformStream, UniformStream, Vector
from decoding.speculation.draft import Draft, DraftSampling, VerifiedPath, VerifyResult
from decoding.speculation.interfaces import AcceptanceRule, Branch

if TYPE_CHECKING:  # imports torch, which a wrong setting need not wait for
    from decoding.speculation.target_logits import TargetLogits

P = Callable[[int], Vector]
"""The target's distribution `[V]` after a node; -1 is the root."""


class TreeRule(Protocol):
    """Base class of rules that verify one tree at a time, independently of the other branches."""

    lossless: ClassVar[bool] = True
    supported_sampling: ClassVar[tuple[DraftSampling, ...]]
    needs_sampling_record: ClassVar[bool] = True
    """Whether drafts must carry the distributions that they were drawn from."""
    reads_vocabulary: ClassVar[bool] = True
    """Whether the rule reads p at ids that were not drawn from, or draws from p before the end of its path: then all of
    p is copied from a GPU."""

    def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        """Returns the accepted path of one draft."""
        ...

    def verify_drafts(self, branches: Items[Branch], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
        """Returns one result per branch. Raises: ValueError for a draft that this rule does not support."""
        if self.needs_sampling_record:
            check_drafts(self, drafts)
        if not (self.reads_vocabulary or target.logits_WV.is_cpu):
            from decoding.speculation.acceptance.device_verification import verify_on_device  # imports torch

            return verify_on_device(self.verify_tree, branches, drafts, target)
        return verify_each(self.verify_tree, branches, drafts, target)


class TopDownRule(TreeRule, Protocol):
    """Base class of rules that choose one token after another from the root down.

    If each token is distributed as p after its node for any drafted children, so is the whole text. A rejected child
    has no probability afterwards, so a token that equals a child's means that this child was accepted.
    """

    def choose_token(self, p_V: Vector, drafted: DraftedChildren, stream: UniformStream) -> int:
        """Returns a token distributed as p, one of the drafted children where possible."""
        ...

    def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        return draft.follow_path(lambda node: self.choose_token(p(node), children_of(draft, node), stream))


class DraftedChild(NamedTuple):
    """One draw: its node, its token, and the index of the token in `DraftedChildren.ids_K`."""

    node: int
    token: int
    id_index: int


class DraftedChildren(NamedTuple):
    """The draws after one node, in the order drawn, and the q that they were drawn from."""

    children: tuple[DraftedChild, ...]
    ids_K: Vector
    q_K: Vector


_LEAF = DraftedChildren((), np.zeros(0, dtype=np.int64), np.zeros(0))


def children_of(draft: Draft, node: int) -> DraftedChildren:
    """Returns the draws after `node`, none after a leaf."""
    record = draft.sampling_record
    if record is None or node not in record.children:
        return _LEAF
    ids_K, q_K = record.draft_probs[node]
    children = []
    for child in record.children[node]:
        # Unpacked: ids of a record are distinct, and a child that was not drawn from q must fail here.
        (index,) = np.flatnonzero(ids_K == draft.tokens[child])
        children.append(DraftedChild(child, draft.tokens[child], int(index)))
    return DraftedChildren(tuple(children), ids_K, q_K)


def verify_each(
    verify_tree: Callable[[Draft, P, UniformStream], VerifiedPath],
    branches: Items[Branch],
    drafts: Items[Draft],
    target: TargetLogits,
) -> list[VerifyResult]:
    """Verifies the draft of every branch with the branch's uniform stream."""
    log_p_WV = target.log_p.cpu().numpy()  # all rows at once: one wait for the device

    def distributions(first_row: int) -> P:
        # The root is node -1, so its row is first_row itself.
        return lambda node: _to_probabilities(log_p_WV[first_row + 1 + node])

    paths = [
        verify_tree(draft, distributions(first), SeededUniformStream(branch.seed, len(branch.tokens)))
        for branch, draft, first in zip(branches, drafts, target.first_rows, strict=True)
    ]
    return add_logprobs(paths, drafts, target)


def add_logprobs(paths: Items[VerifiedPath], drafts: Items[Draft], target: TargetLogits) -> list[VerifyResult]:
    """Returns the paths with the raw log-probabilities of their tokens, read from the device together."""
    from decoding.device_arrays import copy_numbers  # imports torch

    rows_N = [
        first + 1 + node for first, (nodes, _) in zip(target.first_rows, paths, strict=True) for node in (-1, *nodes)
    ]
    texts = [
        (*(draft.tokens[node] for node in nodes), token) for draft, (nodes, token) in zip(drafts, paths, strict=True)
    ]
    tokens_N = [token for tokens in texts for token in tokens]
    # Two index vectors gather W values on the device; only those are copied.
    rows, tokens = copy_numbers([np.array(rows_N), np.array(tokens_N)], target.logits_WV.device)
    (logprobs_N,) = target.read_numbers(target.select_logprobs(tokens, rows))
    logprobs = iter(logprobs_N.tolist())
    return [
        VerifyResult(nodes, tokens, tuple(islice(logprobs, len(tokens))))
        for (nodes, _), tokens in zip(paths, texts, strict=True)
    ]


def _to_probabilities(log_p_V: Vector) -> Vector:
    # In float64 and renormalised: residuals subtract numbers of which float32 keeps seven digits only.
    p_V = np.exp(log_p_V.astype(np.float64))
    return np.asarray(p_V / p_V.sum())


def check_sampling(rule: AcceptanceRule, sampling: DraftSampling) -> None:
    """Checks at load that `rule` is lossless for drafts sampled in this way.

    Raises: ValueError such as "acceptance=k_sequential needs draw=iid, got draw=likely".
    """
    if sampling not in rule.supported_sampling:
        raise ValueError(f"{_requirement(rule)}, got draw={sampling}")


def check_drafts(rule: AcceptanceRule, drafts: Items[Draft]) -> None:
    """Checks drafts before their verification; the empty draft suits every rule.

    Raises: ValueError.
    """
    for draft in drafts:
        if not len(draft):
            continue
        if draft.sampling_record is None:
            raise ValueError(f"{_requirement(rule)}, got a draft without a sampling record")
        check_sampling(rule, draft.sampling_record.sampling)


def _requirement(rule: AcceptanceRule) -> str:
    return f"acceptance={rule_name(rule)} needs draw={' or '.join(rule.supported_sampling)}"


def rule_name(rule: AcceptanceRule) -> str:
    """Returns the name of a rule in messages: its class in snake case, which is its yaml file for the rules here.

    >>> from decoding.speculation.acceptance.k_sequential import KSequential
    >>> rule_name(KSequential())
    'k_sequential'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(rule).__name__).lower()
