"""The suffix tree counts like a search by hand; the source matches, scores and follows as published."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Literal

import pytest

from decoding.core import SamplingParams, Tokens
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.suffix_tree import ROOT, SuffixTree
from decoding.speculation.interfaces import Branch
from tests.support.streams import BranchStream


class Texts:
    """All texts as the set of their beginnings, and how often each was appended: a search tree with duplicates."""

    def __init__(self) -> None:
        self.places: list[Tokens] = []

    def known(self, text: Tokens) -> int:
        beginnings = {(), *self.places}
        return max(n for n in range(len(text) + 1) if text[:n] in beginnings)

    def counts(self) -> Counter[Tokens]:
        return Counter(place[start:] for place in self.places for start in range(len(place)))


def grow(rng: random.Random, tree: SuffixTree, texts: Texts, whole: list[Tokens]) -> None:
    """One more text, from scratch or forked from another anywhere."""
    vocabulary = rng.choice([1, 2, 3, 6])
    text = (*(rng.choice(whole) if whole and rng.random() < 0.6 else ()),)
    text = text[: rng.randint(0, len(text))] + tuple(rng.randrange(vocabulary) for _ in range(rng.randint(0, 4)))
    end, known = tree.find_prefix(text)
    assert known == texts.known(text)
    for n in range(known, len(text)):
        end = tree.append_token(end, text[n])
        texts.places.append(text[: n + 1])
    for _ in range(rng.randint(0, 10)):  # what a branch writes counts also if a sibling wrote the same
        text = (*text, rng.randrange(vocabulary))
        end = tree.append_token(end, text[-1])
        texts.places.append(text)
    whole.append(text)


def test_counts_equal_a_search_by_hand() -> None:
    rng = random.Random(0)
    for _ in range(60):
        tree, texts, whole = SuffixTree(), Texts(), list[Tokens]()
        for _ in range(rng.randint(1, 5)):
            grow(rng, tree, texts, whole)
            tree.assert_invariants()
        counts = texts.counts()
        assert len(tree) == len(texts.places)
        assert tree.find_node((7,)) == -1
        for run, count in counts.items():
            node = tree.find_node(run)
            assert tree.occurrence_count(node) == count
            assert {t: tree.occurrence_count(child) for t, child in tree.child_nodes(node).items()} == followers(
                counts, run
            )
            assert tree.continuation_count(node) == max(count, sum(followers(counts, run).values()))


def followers(counts: Counter[Tokens], run: Tokens) -> dict[int, int]:
    return {token: counts[(*run, token)] for token in range(6) if counts[(*run, token)]}


@pytest.mark.parametrize("longest", [1, 3, 64])
def test_matches_are_the_longest_suffixes_of_their_kind(longest: int) -> None:
    rng = random.Random(1)
    for _ in range(40):
        tree, texts, whole = SuffixTree(), Texts(), list[Tokens]()
        for _ in range(4):
            grow(rng, tree, texts, whole)
        counts = texts.counts()
        for text in whole:
            end, known = tree.find_prefix(text)
            assert known == len(text)
            suffixes = [text[-n:] for n in range(1, min(longest, len(text)) + 1)]
            expected = {tree.find_node(run): len(run) for run in suffixes if followers(counts, run)}
            assert dict(tree.suffix_matches(end, longest)) == expected


def test_path_score_follows_the_most_frequent() -> None:
    tree = SuffixTree()
    for text in ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 6), (1, 7)):
        end = ROOT
        for token in text:
            end = tree.append_token(end, token)
    node = tree.find_node((1,))
    assert tree.path_score(node, steps=9, least=0.1) == pytest.approx(3 / 4 + 2 / 4 + 1 / 4)
    assert tree.path_score(node, steps=2, least=0.1) == pytest.approx(3 / 4 + 2 / 4)
    assert tree.path_score(node, steps=9, least=0.3) == pytest.approx(3 / 4 + 2 / 4)
    assert tree.top_continuations(node, width=8, least=0.0) == [(2, 3 / 4), (7, 1 / 4)]
    assert (
        tree.top_continuations(node, width=1, least=0.0)
        == tree.top_continuations(node, width=8, least=0.3)
        == [(2, 3 / 4)]
    )


def branch(request_id: int, tokens: Tokens, group: str = "") -> Branch:
    return Branch(request_id, group, tokens, 0, SamplingParams(), 99)


def likelihoods(source: SuffixDecoding, state: Any) -> list[dict[int, float]]:
    import numpy as np

    successors = source.next_tokens(state)
    rows = zip(successors.ids_FK.tolist(), np.exp(successors.logp_FK).tolist(), strict=True)
    return [{t: round(p, 4) for t, p in zip(ids, ps, strict=True) if t >= 0} for ids, ps in rows]


def test_a_forked_prefix_counts_once_and_siblings_that_agree_count_each() -> None:
    source = SuffixDecoding()
    source.root_states([branch(0, (1, 2, 3))])
    source.root_states([branch(0, (1, 2, 3, 4, 5))])
    assert source.num_tokens == 5
    forks = [branch(i, (1, 2, 3, 4, 5)) for i in (1, 2, 3)]
    source.root_states(forks)
    assert source.num_tokens == 5
    source.root_states([branch(1, (1, 2, 3, 4, 5, 8)), branch(2, (1, 2, 3, 4, 5, 8)), branch(3, (1, 2, 3, 4, 5, 9))])
    assert source.num_tokens == 8
    assert likelihoods(source, source.root_states([branch(4, (1, 2, 3, 4, 5))])) == [{8: 0.6667, 9: 0.3333}]


def test_problems_share_a_tree_only_with_across_groups() -> None:
    for across, expected in ((False, [{}]), (True, [{9: 0.5}])):  # half, for one of two places is the text's own end
        source = SuffixDecoding(across_groups=across)
        source.root_states([branch(0, (1, 2, 3, 9, 9), "a")])
        assert likelihoods(source, source.root_states([branch(1, (7, 1, 2, 3), "b")])) == expected


def test_depth_follows_the_length_of_the_match() -> None:
    import numpy as np

    text = (*range(20), *range(4))  # the last four tokens came before
    for factor, offset, depth in ((1.0, 0.0, 4), (2.0, 1.0, 9), (0.0, 3.0, 3), (1.0, -1.0, 3)):
        source = SuffixDecoding(factor=factor, offset=offset)
        state = source.root_states([branch(0, text)])
        for token in range(4, 4 + depth):
            assert list(likelihoods(source, state)[0]) == [token]
            state = source.advance(state, np.array([token]))
        assert likelihoods(source, state) == [{}]


def test_a_path_less_likely_than_the_least_is_not_followed() -> None:
    import numpy as np

    source = SuffixDecoding(min_probability=0.3, factor=4.0)
    for i, tail in enumerate([(5, 6), (5, 7), (8, 6), (8, 7)]):
        source.root_states([branch(i, (1, 2, 3, *tail))])
    state = source.root_states([branch(9, (1, 2, 3))])
    assert likelihoods(source, state) == [{5: 0.5, 8: 0.5}]
    assert likelihoods(source, source.advance(state, np.array([5]))) == [{}], "0.25 each"


def test_the_longest_match_need_not_win() -> None:
    """After (2, 3) anything followed, after (3,) nearly always the same: the longer match scores less."""
    source = SuffixDecoding(factor=4.0)
    for i in range(4):
        source.root_states([branch(i, (2, 3, 10 + i))])
    for i in range(4, 40):
        source.root_states([branch(i, (100 + i, 3, 7, 7, 7, 7))])
    (probabilities,) = likelihoods(source, source.root_states([branch(99, (50, 2, 3))]))
    assert next(iter(probabilities)) == 7


def test_both_kinds_of_trees_draft_from_the_one_with_the_larger_score() -> None:
    """In the tree for all, other problems blur what follows (1, 2, 3), and know a longer match after 9."""
    drafts = {}
    for across in (False, True, "both"):
        source = SuffixDecoding(across_groups=across, factor=4.0)
        source.root_states([branch(0, (1, 2, 3, 8, 8, 8), "own")])
        for i in range(1, 6):
            source.root_states([branch(i, (50 + i, 1, 2, 3, 60 + i, 6, 7, 9, 4, 5), "other")])
        texts = ((1, 2, 3), (70, 6, 7, 9))
        drafts[across] = [likelihoods(source, source.root_states([branch(9, text, "own")]))[0] for text in texts]
    problem, for_all, both = drafts.values()
    assert both == [problem[0], for_all[1]]
    assert problem[0] != for_all[0]
    assert problem[1] != for_all[1]


def test_both_kinds_of_trees_know_what_other_problems_wrote() -> None:
    source = SuffixDecoding(across_groups="both")
    source.root_states([branch(0, (1, 2, 3, 9, 9), "a")])
    assert likelihoods(source, source.root_states([branch(1, (7, 1, 2, 3), "b")])) == [{9: 0.5}]
    assert source.num_tokens == 2 * (5 + 4), "every text is in two trees"


def test_both_kinds_of_trees_never_lose_a_running_problem() -> None:
    """The tree for all is begun anew where tokens are too many; finished branches of a running problem stay known."""
    source = SuffixDecoding(max_tokens=20, across_groups="both")
    source.root_states([branch(0, (*range(10), 60), "runs")])
    for i in range(1, 12):
        source.root_states([branch(200, (40, 41), "runs"), branch(i, tuple(range(100 * i, 100 * i + 9)), f"other {i}")])
    (probabilities,) = likelihoods(source, source.root_states([branch(201, (7, 8, 9), "runs")]))
    assert max(probabilities, key=lambda token: probabilities[token]) == 60


@pytest.mark.parametrize("across", [False, True, "both"])
def test_memory_is_bounded_and_old_problems_go_first(across: bool | Literal["both"]) -> None:
    source, most, running = SuffixDecoding(max_tokens=500, across_groups=across), 0, 0
    for branches, _ in BranchStream(seed=9, groups=5, branches=3).run_rounds(source, 300):
        running = max(running, sum(len(one.tokens) for one in branches))
        trees = 2 if across == "both" else 1
        assert source.num_tokens <= max(500, 2 * trees * running) + trees * running, (
            "more than the limit and what a round can bring"
        )
        most = max(most, source.num_tokens)
    assert most > 400
    assert source.num_problems < (3 if across is True else 5)


def test_running_problem_is_never_evicted_however_many_texts_it_had() -> None:
    source = SuffixDecoding(max_tokens=20)
    long_ago = tuple(range(10))
    for i in range(10):
        thinking = branch(i, (*long_ago, 50 + i, *range(10)), "thinks")
        source.root_states([thinking, branch(100 + i, (i, 7), f"other {i}")])
    (probabilities,) = likelihoods(source, source.root_states([branch(99, (60, 3, 4), "thinks")]))
    assert probabilities == {5: pytest.approx(11 / 12, abs=1e-3)}  # once it was the end of a text
    assert source.num_problems == 1


def test_wrong_knobs_are_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_match": 0}, "max_match must be an int >= 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be an int >= 1, got 1.5"),
        ({"factor": -1.0}, "factor must be a number >= 0, got -1.0"),
        ({"offset": -2.0}, "offset must be >= -factor, got -2.0"),
        ({"across_groups": "some"}, "across_groups must be true, false or both, got 'some'"),
        ({"across_groups": 1}, "across_groups must be true, false or both, got 1"),
        ({"min_probability": 0.0}, r"min_probability must be in \(0, 1\], got 0.0"),
    ]
    for knobs, message in wrong:
        with pytest.raises(ValueError, match=message):
            SuffixDecoding(**knobs)
