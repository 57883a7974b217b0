"""Verifies whole paths, leaves first, so that an unlikely token is accepted where likely tokens follow it.

Traversal verification (arXiv 2505.12398), for children drawn without replacement and for independent paths; on a chain
it is block verification (arXiv 2403.10444), which accepts at least as much as any rule for one path.

A node is reached with a weight w, the probability that its path is accepted so far: 1 at the root, and min(1, w p / q)
of its parent's w for a child. When a child and all nodes below it are rejected, its parent continues with

    (w p - q)+  over its sum Z    for p
    Z / (Z + 1 - w)               for w
    q without the child           for q; with independent draws q itself

and, after its last child, is accepted with its last w. The tokens drawn below different nodes must be independent of
each other: this rule reads all of them before it decides on the first token. How many there are need not be: the chance
that something below a node is accepted is its w, however many children it has (stochastic beams, dynamic trees, and
paths that share a node).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from decoding.speculation.acceptance.residual import exclude_token, normalize_weights, positive_part
from decoding.speculation.acceptance.uniform_stream import UniformStream, Vector
from decoding.speculation.acceptance.verify import P, TreeRule, children_of
from decoding.speculation.draft import Draft, DraftSampling, VerifiedPath


@dataclass(frozen=True)
class Traversal(TreeRule):
    """Traversal verification: bottom up, in the order drawn."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = (
        "without_replacement",
        "stochastic_beam",
        "dynamic_tree",
        "iid",
    )
    reads_vocabulary: ClassVar[bool] = False

    def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        path = _run_nested(_verify_subtree(draft, p, stream, -1, 1))
        assert path is not None, "the root's weight stays 1"
        return path


_Verification = Generator["_Verification", VerifiedPath | None, VerifiedPath | None]


def _run_nested(outermost: _Verification) -> VerifiedPath | None:
    """Runs a verification and those that it yields; no recursion, since a draft may be deeper than Python's stack."""
    running, path = [outermost], None
    while running:
        try:
            running.append(running[-1].send(path))
            path = None
        except StopIteration as end:
            running.pop()
            path = end.value
    return path


def _verify_subtree(draft: Draft, p: P, stream: UniformStream, node: int, w: Any) -> _Verification:
    """Returns the path accepted at or below `node`, reached with weight `w`, or None where all of it is rejected.

    Yields the verification below each child and is sent its path.
    """
    p_V, drafted = p(node), children_of(draft, node)
    q_K, tried = drafted.q_K, set[int]()
    for child, token, index in drafted.children:
        weighted = w * p_V[token]  # compared before the division: q may underflow to 0
        child_w = weighted / q_K[index] if weighted < q_K[index] else 1
        if child not in tried:
            path = yield _verify_subtree(draft, p, stream, child, child_w)
        else:  # drawn again: what is below it was tried the first time
            path = _accept_node(draft, p(child), stream, child, child_w)
        if path is not None:
            return path
        tried.add(child)
        p_V, w = _after_rejection(p_V, w, drafted.ids_K, q_K)
        if not draft.is_iid:
            q_K = exclude_token(q_K, index)  # after p: its residual subtracts the q of this draw
    return _accept_node(draft, p_V, stream, node, w)


def _accept_node(draft: Draft, p_V: Vector, stream: UniformStream, node: int, w: Any) -> VerifiedPath | None:
    return VerifiedPath(draft.path_to(node), stream.sample_index(p_V)) if stream.accept_ratio(w) else None


def _after_rejection(p_V: Vector, w: Any, ids_K: Vector, q_K: Vector) -> tuple[Vector, Any]:
    residual_V = positive_part(w * p_V, ids_K, q_K)
    z = residual_V.sum()
    if not z > 0:
        # Either w is below 1 and no probability remains to accept, or the rejection had probability 0.
        return p_V, 1 if w == 1 else 0
    # 1 - w in brackets: the root's weight stays exactly 1, and a small z is not lost in 1 - w + z.
    return normalize_weights(residual_V, otherwise=p_V), z / (z + (1 - w))
