"""The source matches, scores and follows as published; memory is bounded, and no running problem is forgotten."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from decoding.core import SamplingParams, Tokens
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.interfaces import Branch
from tests.support.streams import BranchStream

Trees = bool | Literal["both", "finished"]


def branch(request_id: int, tokens: Tokens, group: str = "") -> Branch:
    return Branch(request_id, group, tokens, 0, SamplingParams(), 99)


def likelihoods(source: SuffixDecoding, state: Any) -> list[dict[int, float]]:
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
    text = (*range(20), *range(4))  # the last four tokens came before
    for factor, offset, depth in ((1.0, 0.0, 4), (2.0, 1.0, 9), (0.0, 3.0, 3), (1.0, -1.0, 3)):
        source = SuffixDecoding(factor=factor, offset=offset)
        state = source.root_states([branch(0, text)])
        for token in range(4, 4 + depth):
            assert list(likelihoods(source, state)[0]) == [token]
            state = source.advance(state, np.array([token]))
        assert likelihoods(source, state) == [{}]


def test_a_path_less_likely_than_the_least_is_not_followed() -> None:
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


def test_as_published_a_request_has_its_own_tree_beside_that_of_finished_answers() -> None:
    source = SuffixDecoding(across_groups="finished", factor=4.0)
    running = branch(0, (1, 2, 3, 9, 9, 1, 2), "a")
    sibling = branch(1, (8, 5, 1, 2), "a")
    by_itself, by_sibling = likelihoods(source, source.root_states([running, sibling]))
    assert by_itself == {3: 0.5}, "half, for one of two places is the text's own end"
    assert by_sibling == {}, "the sibling's text is not finished"
    assert likelihoods(source, source.root_states([sibling])) == [{3: 0.5}], "it is now"


def test_the_better_score_of_the_two_published_trees_wins() -> None:
    """A request's own text has one continuation; finished answers agree on a longer one, or do not agree."""
    source = SuffixDecoding(across_groups="finished", factor=4.0, min_probability=0.3)
    for i in range(4):
        source.root_states([branch(i, (50 + i, 1, 2, 6, 6, 6))])
    for i in range(4, 8):
        source.root_states([branch(i, (50 + i, 4, 5, i))])
    agreed, torn = (branch(10 + i, (*text, 60, *text)) for i, text in enumerate([(1, 2, 8), (4, 5, 8)]))
    ends = [branch(one.request_id, one.tokens[:-1]) for one in (agreed, torn)]
    first, second = likelihoods(source, source.root_states(ends))
    assert list(first) == [6]
    assert list(second) == [8]


def test_a_preempted_request_goes_on_where_it_was() -> None:
    source = SuffixDecoding(across_groups="finished")
    waiting, going = branch(0, (1, 2, 3, 4, 1, 2)), branch(1, (9, 9))
    expected = likelihoods(source, source.root_states([waiting, going]))[0]
    source.root_states([going])
    tokens = source.num_tokens
    assert likelihoods(source, source.root_states([going, waiting]))[1] == expected == {3: 0.5}
    source.root_states([going])
    source.root_states([going, waiting])
    assert source.num_tokens <= tokens + 2 * len(waiting.tokens), "the tree of finished ones has it once"


def test_both_kinds_of_trees_never_lose_a_running_problem() -> None:
    """The tree for all is begun anew where tokens are too many; finished branches of a running problem stay known."""
    source = SuffixDecoding(max_tokens=20, across_groups="both")
    source.root_states([branch(0, (*range(10), 60), "runs")])
    for i in range(1, 12):
        source.root_states([branch(200, (40, 41), "runs"), branch(i, tuple(range(100 * i, 100 * i + 9)), f"other {i}")])
    (probabilities,) = likelihoods(source, source.root_states([branch(201, (7, 8, 9), "runs")]))
    assert max(probabilities, key=lambda token: probabilities[token]) == 60


@pytest.mark.parametrize("across", [False, True, "both", "finished"])
def test_memory_is_bounded(across: Trees) -> None:
    source, most, running = SuffixDecoding(max_tokens=500, across_groups=across), 0, 0
    for branches, _ in BranchStream(seed=9, groups=40, branches=3).run_rounds(source, 300):
        running = max(running, sum(len(one.tokens) for one in branches))
        trees = 1 if across in (False, True) else 2
        assert source.num_tokens <= max(500, 2 * trees * running) + trees * running, (
            "more than the limit and what a round can bring"
        )
        source.forest.assert_invariants()
        most = max(most, source.num_tokens)
    assert most > 400


@pytest.mark.parametrize("across", [False, True, "both", "finished"])
def test_memory_of_a_token_is_as_stated(across: Trees) -> None:
    source = SuffixDecoding(across_groups=across)
    texts = np.random.default_rng(0).integers(200, size=(40, 1000)).tolist()
    for i, text in enumerate(texts):
        source.root_states([branch(i, tuple(text), f"problem {i % 3}")])
        assert i < 3 or source.size_bytes < 100 * source.num_tokens, "0.1 KB each"


@pytest.mark.parametrize("across", [False, True, "both", "finished"])
def test_the_text_that_ended_first_is_evicted_first(across: Trees) -> None:
    source = SuffixDecoding(max_tokens=800 if across == "both" else 400, across_groups=across)
    for i in range(40):
        texts = [branch(i, (*range(10 * i, 10 * i + 10),), "one" if across is False else f"problem {i}")]
        source.root_states(texts)
    for i in range(4):
        source.root_states([branch(50 + i, (*range(1000 + 100 * i, 1060 + 100 * i),), f"other {i}")])
    group = "one" if across is False else "new"
    ends = [branch(100 + i, (10 * i + 3, 10 * i + 4), group) for i in range(40)]
    known = [bool(one) for one in likelihoods(source, source.root_states(ends))]
    assert known == sorted(known), "the known ones are the last"
    assert 0 < sum(known) < 35


def test_running_problem_is_never_evicted_however_many_texts_it_had() -> None:
    source = SuffixDecoding(max_tokens=20)
    long_ago = tuple(range(10))
    for i in range(10):
        thinking = branch(i, (*long_ago, 50 + i, *range(10)), "thinks")
        source.root_states([thinking, branch(100 + i, (i, 7), f"other {i}")])
    (probabilities,) = likelihoods(source, source.root_states([branch(99, (60, 3, 4), "thinks")]))
    assert probabilities == {5: pytest.approx(11 / 12, abs=1e-3)}  # once it was the end of a text
    assert source.num_tokens < 10 + 10 * 11 + 3 + 10, "long ago, ten ends of it, and little of others"


def test_wrong_knobs_are_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_match": 0}, "max_match must be an int >= 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be an int >= 1, got 1.5"),
        ({"factor": -1.0}, "factor must be a number >= 0, got -1.0"),
        ({"offset": -2.0}, "offset must be >= -factor, got -2.0"),
        ({"across_groups": "some"}, "across_groups must be true, false, both or finished, got 'some'"),
        ({"across_groups": 1}, "across_groups must be true, false, both or finished, got 1"),
        ({"min_probability": 0.0}, r"min_probability must be in \(0, 1\], got 0.0"),
    ]
    for knobs, message in wrong:
        with pytest.raises(ValueError, match=message):
            SuffixDecoding(**knobs)
