"""A spine with branches: what the tree contains in every round, how its nodes are divided, and what it learns."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import numpy as np
import pytest

from decoding.core import SamplingParams, Tokens
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.goose import GooseDrafter
from decoding.speculation.drafters.prompt_lookup import PromptLookup
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, CostEstimate, DraftPlan, Feedback
from tests.support.draft_sources import FakeSource, paths
from tests.support.streams import BranchStream

VOCABULARY = 12


def known_successors(source: TokenRecycling, rng: random.Random, share: float = 1.0) -> None:
    """Teaches the table `k` random successors of a share of all tokens."""
    fed = [token for token in range(VOCABULARY) if rng.random() < share] or [0]
    top = np.array([rng.sample(range(VOCABULARY), source.k) for _ in range(1 + len(fed))])
    branch = Branch(0, "", (fed[0],), 0, SamplingParams(), 9)
    chain = Draft(tuple(fed), tuple(range(-1, len(fed) - 1)))
    source.observe([Feedback(branch, chain, (), top, -top.astype(np.float32))])


def goose(rng: random.Random, share: float = 1.0, k: int = 4, **knobs: Any) -> GooseDrafter:
    drafter = GooseDrafter(TokenRecycling(k), **{"nodes": 1000, **knobs})
    known_successors(drafter.source, rng, share)
    return drafter


NUMBERS = count()


def one_branch(tokens: Tokens) -> Branch:
    """A branch of its own: of one with a number that it knows a drafter reads only what is new."""
    return Branch(next(NUMBERS), "", tokens, 1, SamplingParams(), 1000)


def propose(drafter: GooseDrafter, tokens: Tokens, nodes: int) -> Draft:
    (draft,) = drafter.propose([one_branch(tokens)], DraftPlan((nodes,), nodes))
    draft.assert_invariants()
    assert len(draft) <= nodes
    return draft


def copied_draft(tokens: Tokens, nodes: int) -> Draft:
    """What prompt lookup alone drafts."""
    drafter = TreeDrafter(PromptLookup(), "likely", width=1, depth=1000)
    return drafter.propose([one_branch(tokens)], DraftPlan((nodes,), nodes))[0]


def accepted_nodes(draft: Draft, text: Tokens) -> tuple[int, ...]:
    following = iter((*text, *(-2,) * 1000))
    return draft.follow_path(lambda _: next(following)).accepted_nodes


def count_accepted(draft: Draft, text: Tokens) -> int:
    return len(accepted_nodes(draft, text))


def random_text(rng: random.Random, *, repeats: bool = True) -> Tokens:
    """A text whose end is that of an earlier part, of random length, or a text of different tokens."""
    if not repeats:
        return tuple(rng.sample(range(VOCABULARY), rng.randint(1, VOCABULARY)))
    text = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(8, 40)))
    begin = rng.randint(0, len(text) - 1)
    return text + text[begin : begin + rng.randint(1, 10)]


def random_continuations(rng: random.Random, drafts: list[Draft]) -> list[Tokens]:
    """Texts that the target may write: down every node of the drafts, and then random tokens."""
    after = tuple(rng.randrange(VOCABULARY) for _ in range(5))
    return [tuple(d.tokens[i] for i in d.path_to(node)) + after for d in drafts for node in range(-1, len(d))]


def spine_of(draft: Draft, tokens: Tokens) -> int:
    """The number of tokens of the copy that the tree contains."""
    copy = copied_draft(tokens, 1000)
    return count_accepted(draft, copy.tokens)


class TestItsGuarantee:
    @pytest.mark.parametrize("share", [1.0, 0.5])
    def test_accepts_at_least_what_the_better_source_accepts_with_its_share(self, share: float) -> None:
        rng, tried, strictly = random.Random(0), 0, 0
        for _ in range(150):
            drafter = goose(rng, share, sure_match=rng.choice([1, 4, 8]), root_share=rng.choice([0.0, 0.3, 0.5, 1.0]))
            drafter.spine_acceptance = rng.random()
            tokens, nodes = random_text(rng), rng.randint(1, 40)
            draft = propose(drafter, tokens, nodes)
            copy = copied_draft(tokens, 1000)
            confidence = min(match_length(tokens), drafter.sure_match) / drafter.sure_match
            spine = min(drafter.spine_nodes(nodes, confidence), len(copy))
            root = drafter.root_nodes(nodes, spine)
            cut, recycled = copy.truncate_to(nodes=spine, depth=1000), drafter.recycled_draft(tokens[-1], root, 999)
            assert len(recycled) <= root
            assert paths([cut]).keys() | paths([recycled]).keys() <= paths([draft]).keys()
            for text in random_continuations(rng, [copy, recycled, draft]):
                alone = max(count_accepted(cut, text), count_accepted(recycled, text))
                assert count_accepted(draft, text) >= alone
                tried, strictly = tried + 1, strictly + (count_accepted(draft, text) > alone)
        assert tried > 4000
        assert strictly > 0.1 * tried, "the branches of the spine's nodes accept more than either source"

    def test_with_a_sure_match_it_is_all_that_prompt_lookup_drafts_with_as_many_nodes(self) -> None:
        rng, longer = random.Random(1), 0
        for _ in range(100):
            drafter, tokens, nodes = goose(rng, sure_match=1), random_text(rng), rng.randint(1, 30)
            draft, copy = propose(drafter, tokens, nodes), copied_draft(tokens, nodes)
            assert paths([copy]).keys() <= paths([draft]).keys()
            longer += len(draft) > len(copy) > 0
        assert longer > 30, "what a short copy leaves is for branches"

    def test_without_a_match_it_is_the_recycled_tree(self) -> None:
        rng = random.Random(2)
        for _ in range(50):
            drafter, tokens, nodes = goose(rng, 0.7), random_text(rng, repeats=False), rng.randint(1, 40)
            alone = drafter.recycled_draft(tokens[-1], nodes, 999)
            assert paths([propose(drafter, tokens, nodes)]).keys() == paths([alone]).keys()

    def test_with_a_short_match_a_source_with_all_nodes_may_accept_more(self) -> None:
        """So it is not as good as either source at equal nodes, in every round."""
        drafter = goose(random.Random(3), sure_match=1000)
        drafter.spine_acceptance = 0.0
        tokens = (*range(VOCABULARY), 0)
        draft = propose(drafter, tokens, nodes=10)
        assert spine_of(draft, tokens) < 10 == count_accepted(copied_draft(tokens, 10), tokens[1:])


def match_length(tokens: Tokens) -> int:
    source = PromptLookup()
    return int(source.root_states([one_branch(tokens)])[0, 2])


class TestHowNodesAreDivided:
    def test_the_spines_share_is_the_base_and_the_confidences_part_of_the_rest(self) -> None:
        drafter = GooseDrafter(TokenRecycling())
        for acceptance, base in ((0.0, 0.15), (0.15, 0.15), (0.3, 0.3), (0.5, 0.5), (1.0, 0.5)):
            drafter.spine_acceptance = acceptance
            assert drafter.spine_nodes(1000, 0.0) == round(1000 * base)
            assert drafter.spine_nodes(1000, 0.5) == round(1000 * (base + (1 - base) / 2))
            assert drafter.spine_nodes(1000, 1.0) == 1000

    def test_alternatives_have_weight_one_over_their_place_on_the_spine(self) -> None:
        """All tokens have enough successors, none of which is the copy's or another's."""
        source = TokenRecycling(8)
        length = 10
        # token t is followed by 100 + 10 t, ..., which have successors of their own
        fed = tuple(range(length + 1))
        top = np.array([[100 + 10 * token + rank for rank in range(8)] for token in (0, *fed)])
        chain = Draft(fed, tuple(range(-1, length)))
        source.observe([Feedback(one_branch((0,)), chain, (), top, -top.astype(np.float32))])
        drafter = GooseDrafter(source, nodes=1000, root_share=0.0, sure_match=1000)
        tokens = (*fed, 0)
        drafter.spine_acceptance = 0.5
        draft = propose(drafter, tokens, nodes=40)
        spine = length + 1  # the whole copy
        assert drafter.spine_nodes(40, 1 / 1000) > spine
        beside = [0] * (spine + 1)
        for node, parent in enumerate(draft.parents):
            if node >= spine:
                beside[parent + 1] += 1
        assert draft.tokens[:spine] == tokens[1 : 1 + spine]
        assert beside[0] == 0, "root_share=0"
        sums = np.cumsum([1 / i for i in range(1, spine + 1)])
        ends = np.round((40 - spine) * sums / sums[-1]).astype(int)
        assert beside[1:] == [min(8, part) for part in np.diff(ends, prepend=0)]
        assert sorted(beside[1:], reverse=True) == beside[1:]

    def test_what_the_table_does_not_know_lengthens_the_spine(self) -> None:
        drafter = GooseDrafter(TokenRecycling(), nodes=32, sure_match=1000)
        drafter.spine_acceptance = 0.0
        tokens = (*range(30), 0)
        assert propose(drafter, tokens, nodes=20).tokens == tuple(range(1, 21))

    def test_drafts_are_as_large_as_the_confidence(self) -> None:
        rng = random.Random(4)
        drafter = goose(rng, nodes=6, more_nodes=8, sure_match=4)
        assert len(propose(drafter, tuple(range(12)), 100)) == 6
        for match in (1, 2, 4, 6):
            tokens = (*range(8), 11, 10, 9, 11, 10, *range(8 - match, 8))
            assert match_length(tokens) == match
            assert len(propose(drafter, tokens, 100)) == 6 + 8 * min(match, 4) // 4

    def test_trees_are_no_deeper_than_the_text_and_keep_to_every_plan(self) -> None:
        rng = random.Random(5)
        drafter, total_nodes = goose(rng, nodes=16), 0
        for _ in range(80):
            running = [
                Branch(next(NUMBERS), "", random_text(rng), i, SamplingParams(), rng.choice([1, 2, 5, 100]))
                for i in range(rng.randint(1, 4))
            ]
            most = tuple(rng.choice([0, 3, 50]) for _ in running)
            plans = [
                DraftPlan(most, rng.randint(0, 60)),
                DraftPlan(most, 60, CostEstimate.along_line(1.0, rng.choice([0.01, 0.5]), 60)),
                DraftPlan(most, 60, least_probabilities=(0.2,) * len(running)),
            ]
            plan = rng.choice(plans)
            drafts = drafter.propose(running, plan)
            assert sum(map(len, drafts)) <= plan.max_total
            for branch, draft, limit in zip(running, drafts, most, strict=True):
                draft.assert_invariants()
                assert len(draft) <= limit
                assert max(draft.depths, default=0) <= max(0, branch.remaining - 1)
                assert not plan.least_probabilities or min(draft.path_probabilities, default=1) >= 0.2
            total_nodes += sum(map(len, drafts))
        assert total_nodes > 300

    def test_too_few_nodes_are_divided_equally(self) -> None:
        rng = random.Random(6)
        drafter = goose(rng)
        running = [Branch(i, "", random_text(rng), i, SamplingParams(), 1000) for i in range(3)]
        sizes = [len(draft) for draft in drafter.propose(running, DraftPlan((30, 30, 4), 24))]
        assert sizes == [10, 10, 4]


class TestWhatItLearns:
    def test_the_base_follows_the_share_of_the_spine_that_was_accepted(self) -> None:
        drafter, tokens = goose(random.Random(7)), (*range(VOCABULARY), 0)
        before = drafter.spine_acceptance
        for accepted, is_larger in ((True, True), (False, False)):
            for _ in range(60):
                draft = propose(drafter, tokens, 16)
                path = accepted_nodes(draft, tokens[1:])
                k = drafter.feedback_k
                top = np.full((1 + len(draft), k), -1), np.zeros((1 + len(draft), k), dtype=np.float32)
                drafter.lookup.observe([])
                drafter.source = TokenRecycling(4)  # feedback without tokens: an empty table
                drafter.observe([Feedback(one_branch(tokens), draft, path if accepted else (), *top)])
            assert (drafter.spine_acceptance > before) == is_larger
        assert drafter.spine_acceptance < 0.15

    def test_probabilities_follow_outcomes_of_spine_and_branches_apart(self) -> None:
        """Copies are always right in this stream of repetitions; the table's tokens never are."""
        drafter, rng = goose(random.Random(8)), random.Random(8)
        tokens = (*range(VOCABULARY), 0)
        for _ in range(50):
            known_successors(drafter.source, rng)
            draft = propose(drafter, tokens, 16)
            path = accepted_nodes(draft, tokens[1:])
            top = np.array([rng.sample(range(VOCABULARY), 4) for _ in range(1 + len(draft))])
            drafter.observe([Feedback(one_branch(tokens), draft, path, top, -top.astype(np.float32))])
        draft = propose(drafter, tokens, 16)
        spine = spine_of(draft, tokens)
        reach = paths([draft])
        assert reach[0, tokens[1 : 1 + min(spine, 4)]] > 0.7
        others = [p for (_, path), p in reach.items() if path != tokens[1 : 1 + len(path)]]
        assert others
        assert max(others) < 0.2

    def test_learns_from_random_rounds_of_growing_branches(self) -> None:
        drafter, stream = GooseDrafter(TokenRecycling(5)), BranchStream(seed=1, vocabulary=9)
        drafted = 0
        for _ in range(60):
            branches = stream.next_round()
            drafts = drafter.propose(branches, DraftPlan((20,) * len(branches), 20 * len(branches)))
            for draft in drafts:
                draft.assert_invariants()
            drafted += sum(map(len, drafts))
            drafter.observe(stream.commit_random(drafter.source, branches, drafts))
        assert drafted > 2000
        assert drafter.lookup.num_texts == len(branches)


def test_wrong_settings_are_named() -> None:
    for knob, wrong in (("nodes", 0), ("more_nodes", -1), ("sure_match", 0), ("root_share", 1.5), ("max_ngram", 0)):
        settings: dict[str, Any] = {knob: wrong}
        with pytest.raises(ValueError, match=f"{knob} must be"):
            GooseDrafter(TokenRecycling(), **settings)
    with pytest.raises(ValueError, match="draw must be one of likely"):
        GooseDrafter(TokenRecycling(), "iid")
    wrong_source: Any = FakeSource()
    with pytest.raises(ValueError, match="source must be a TokenRecycling"):
        GooseDrafter(wrong_source)
