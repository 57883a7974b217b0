"""Plans a batch of continuations: how each is written, and how many tokens the budget and its thought leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.core import SamplingParams
from search.continuation import ContinuationWriter
from search.thought import ThoughtBudget
from search.tree import SearchTree

_LEAST_ANSWER = 4  # the part of `answer_tokens` in which an answer may be written


@dataclass(eq=False, slots=True)  # as `Continuation`
class ExpansionPlan:
    """How the continuations of a batch are written; most fields are arguments of `Expander.sample_continuations`.

    reserved        tokens reserved for each of them
    limit           of these, tokens that are not for probes of its thought
    thought_tokens  tokens that each thought may still have where the budget nears its end; None: it does not
    is_level        whether all paths of the search are in the batch, and share what is left of the budget
    whole           whether it waits beside others until the budget affords all of it
    """

    sampling: SamplingParams
    writer: ContinuationWriter
    thought: ThoughtBudget | None
    one_step: bool
    path_tokens: int | None
    pauses: bool
    reserved: int
    limit: int
    thought_tokens: int | None
    is_level: bool
    whole: bool


def limit_tokens_of_each(
    max_tokens: int, thought: ThoughtBudget | None, remaining: int | None, num_paths: int
) -> tuple[int, int | None]:
    """Returns the tokens to reserve for each of these continuations, and `ExpansionPlan.thought_tokens`.

    remaining  tokens that the budget has left; None: it has no limit, or no thought has to end for it
    """
    probes = None if thought is None or thought.probes is None else thought.probes.rule
    with_probes = max_tokens if probes is None else probes.add_probes(max_tokens)
    share = None if thought is None else _share_budget(remaining, num_paths, with_probes, thought)
    if thought is None or share is None:
        return with_probes, None
    for_thought = share - thought.answer_tokens
    thought_tokens = max(0, for_thought)
    if probes is not None:  # those are of the thought, and not of its answer
        thought_tokens = probes.without_probes(for_thought) if for_thought > 0 else 0
    return min(with_probes, max(share, thought.answer_tokens)), thought_tokens


def _share_budget(remaining: int | None, num_paths: int, step_tokens: int, thought: ThoughtBudget) -> int | None:
    """Returns an equal share of the budget for each of some paths where it nears its end, else None.

    It does where it has not as much as another step of each thought and then the answers. A path that thought on
    would take the room of the others' answers.
    """
    if remaining is None or not num_paths or remaining >= num_paths * (step_tokens + thought.answer_tokens):
        return None
    return max(1, remaining // num_paths)


def leave_out_probes(reserved: int, max_tokens: int, thought: ThoughtBudget | None, thought_tokens: int | None) -> int:
    """Returns how many of the tokens reserved for a continuation are not for probes of its thought."""
    if thought is None or thought.probes is None:
        return reserved
    if thought_tokens is not None:
        return min(max_tokens, thought_tokens + thought.answer_tokens, reserved)
    return min(max_tokens, thought.probes.rule.without_probes(reserved))


def is_too_late(
    tree: SearchTree, parents: Sequence[int], thought: ThoughtBudget, remaining: int | None, *, is_level: bool
) -> bool:
    """Returns whether the `remaining` tokens of the budget are too few for an answer, and all these paths still think.

    Most answers need far less than the room that is kept for them: the thoughts of a level are ended in what is
    left of it, and none is begun.
    """
    least = thought.answer_tokens
    if is_level and SearchTree.ROOT not in parents:
        least = max(1, least // _LEAST_ANSWER)
    if remaining is None or remaining >= least or not len(tree):
        return False
    return all(thought.is_open(tree.path_text(parent)) for parent in parents)
