"""A forest finds and scores matches like a search by hand, with texts that fork, agree and are removed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from decoding.core import Tokens
from decoding.speculation.drafters.text_forest import StoredText, SuffixMatch, TextForest, TextName


class TextsByHand:
    """Every appended token as the text up to it, in order: a search tree with duplicates, searched by hand."""

    def __init__(self) -> None:
        self.texts: list[Tokens] = []

    def count_known(self, text: Tokens) -> int:
        beginnings = {(), *self.texts}
        return max(n for n in range(len(text) + 1) if text[:n] in beginnings)

    def best_match(self, text: Tokens, longest: int, factor: float, least: float) -> tuple[int, int, float]:
        """Number of places, length and score of the best match."""
        best = (0, 0, 0.0)
        for length in range(min(longest, len(text)), 0, -1):
            places = [one for one in self.texts if one[-length:] == text[-length:]]
            score = self.score(places, int(factor * length + 1e-6), least)
            if score > best[2]:
                best = (len(places), length, score)
        return best

    def score(self, places: list[Tokens], steps: int, least: float) -> float:
        probability, total = 1.0, 0.0
        for _ in range(steps):
            above = set(places)
            followers = [one for one in self.texts if one[:-1] in above]
            if not followers:
                break
            token, count = Counter(one[-1] for one in followers).most_common(1)[0]  # of equals the first counted
            probability *= count / max(len(places), len(followers))
            if probability < least:
                break
            total += probability
            places = [one for one in followers if one[-1] == token]
        return total


def grow(rng: random.Random, forest: TextForest, places: TextsByHand, whole: list[Tokens], tree: str) -> None:
    """Adds one more text, from scratch or forked from another anywhere, in two parts."""
    vocabulary = rng.choice([1, 2, 3, 6])
    text = (*(rng.choice(whole) if whole and rng.random() < 0.6 else ()),)
    text = text[: rng.randint(0, len(text))] + tuple(rng.randrange(vocabulary) for _ in range(rng.randint(1, 4)))
    known, before = places.count_known(text), len(forest)
    name = TextName(tree, len(whole))
    forest.add_text(name, "", text)
    assert len(forest) - before == len(text) - known
    # What a branch writes counts also if a sibling wrote the same.
    longer = text + tuple(rng.randrange(vocabulary) for _ in range(rng.randint(0, 10)))
    forest.add_text(name, "", longer)
    places.texts += [longer[:n] for n in range(known + 1, len(longer) + 1)]
    whole.append(longer)


@pytest.mark.parametrize(("longest", "factor", "least"), [(1, 1.0, 0.1), (3, 2.0, 0.3), (64, 1.0, 0.1), (64, 4.0, 0.5)])
def test_matches_equal_a_search_by_hand(longest: int, factor: float, least: float) -> None:
    rng, num_matches = random.Random(0), 0
    for _ in range(40):
        forest = TextForest()
        trees = {tree: (TextsByHand(), list[Tokens]()) for tree in ("one", "other")}
        for _ in range(rng.randint(2, 8)):
            tree = rng.choice(list(trees))
            grow(rng, forest, *trees[tree], tree)
        forest.assert_invariants()
        for name, text in forest.texts.items():
            tokens = trees[str(name.tree)][1][name.request_id]
            for tree, (places, _) in trees.items():  # also the tree that the text is not in
                match = forest.find_match(tree, text.end, longest=longest, factor=factor, offset=0.0, least=least)
                size, length, score = places.best_match(tokens, longest, factor, least)
                assert (len(match.places), match.length) == (size, length)
                assert match.score == pytest.approx(score)
                num_matches += match.score > 0
    assert num_matches > 50


def find(forest: TextForest, name: TextName) -> SuffixMatch:
    """One token deep: what it finds does not depend on which of equally frequent tokens is older."""
    return forest.find_match(name.tree, forest.texts[name].end, longest=9, factor=0.0, offset=1.0, least=0.1)


def test_removing_texts_leaves_a_forest_that_never_had_them() -> None:
    rng = random.Random(1)
    for _ in range(30):
        forest, kept_only, whole = TextForest(), TextForest(), list[Tokens]()
        for i in range(8):
            above = rng.choice(whole) if whole and rng.random() < 0.7 else ()
            # A token of its own after the fork: siblings that agree would count each, and not when they are read again.
            tail = (100 + i, *(rng.randrange(3) for _ in range(rng.randint(0, 12))))
            whole.append(above[: rng.randint(0, len(above))] + tail)
            forest.add_text(TextName("tree", i), "", whole[i])
        kept_requests = sorted(rng.sample(range(8), 3))
        for i in range(8):
            if i in kept_requests:
                kept_only.add_text(TextName("tree", i), "", whole[i])
            else:
                assert forest.remove_text(TextName("tree", i)) == whole[i]
        forest.make_room(0, lambda text: True)
        forest.assert_invariants()
        assert len(forest) == len(kept_only)
        for name in kept_only.texts:
            got, expected = find(forest, name), find(kept_only, name)
            assert (len(got.places), got.length, got.score) == (len(expected.places), expected.length, expected.score)
            assert forest.remove_text(name) == whole[name.request_id]


def test_room_is_made_from_the_oldest_and_never_from_a_required_text() -> None:
    forest = TextForest()
    for i in range(20):
        forest.add_text(TextName(i % 2, i), "runs" if i < 2 else "", tuple(range(100 * i, 100 * i + 10)))

    def runs(text: StoredText) -> bool:
        return text.group == "runs"

    forest.make_room(300, runs)
    assert len(forest) == 200, "there is room"
    forest.make_room(100, runs)
    forest.assert_invariants()
    left = sorted(name.request_id for name in forest.texts)
    assert left[:2] == [0, 1]
    assert left[2:] == list(range(20 - len(left[2:]), 20)), "the last ones"
    assert 50 <= len(forest) + len(left) <= 75, "a quarter of the room is free"


def test_tokens_of_any_size_and_many_texts_grow_the_arrays() -> None:
    forest = TextForest()
    for i in range(300):
        forest.add_text(TextName("tree", i), "", tuple(range(i * 200, i * 200 + 20)))
    forest.assert_invariants()
    end = forest.add_text(TextName("tree", 999), "", (59_803, 59_804))
    match = forest.find_match("tree", end, longest=5, factor=1.0, offset=0.0, least=0.1)
    assert (match.length, len(match.places)) == (2, 2)
    assert forest.size_bytes < 100 * len(forest) + 8 * (1 << 17)
