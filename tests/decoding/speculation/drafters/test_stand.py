"""STAND as a source: what it learns from a round, and in which tables it looks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from decoding.core import SamplingParams, Tokens
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.interfaces import Branch, Feedback
from tests.support.draft_sources import check_next_tokens
from tests.support.streams import BranchStream

KINDS: dict[str, dict[str, Any]] = {
    "ours": {},
    "published": {"max_order": 4, "mix": False, "prompt": False, "rejected": False, "shared": False},
    "longest contexts only": {"max_order": 5, "min_order": 3, "width": 40},
    "in little room": {"capacity": 200, "width": 3},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def branch(*tokens: int, group: str = "a problem") -> Branch:
    # a text is another request than its beginning: nothing of it counts as written in rounds without feedback
    return Branch(hash(tokens), group, tokens, 1, SamplingParams(max_tokens=100), 100)


def feedback_of(of: Branch, *rows: dict[int, float], draft: Draft | None = None, accepted: Tokens = ()) -> Feedback:
    """Returns feedback with the target's probabilities after the branch, then after each node of the draft."""
    width = max(map(len, rows))
    filled = [[*row.items(), *((100 + k, 1e-9) for k in range(width - len(row)))] for row in rows]
    ids, p = np.array([[t for t, _ in row] for row in filled]), np.array([[p for _, p in row] for row in filled])
    return Feedback(of, draft or Draft(), accepted, ids, np.log(p).astype(np.float32))


def after(source: Stand, of: Branch) -> dict[int, float]:
    """What may come after a branch, best first."""
    candidates = source.next_tokens(source.root_states([of]))
    return {
        int(t): float(np.exp(p)) for t, p in zip(candidates.ids_FK[0], candidates.logp_FK[0], strict=True) if t >= 0
    }


def test_rows_of_rejected_nodes_update_the_table() -> None:
    source = Stand(prompt=False)
    draft = Draft((4, 7, 5), (-1, -1, 1))
    source.observe(
        [feedback_of(branch(1, 2, 3), {4: 0.9}, {40: 0.8}, {70: 0.7}, {50: 0.6}, draft=draft, accepted=(0,))],
    )
    for text, token in (((1, 2, 3), 4), ((1, 2, 3, 4), 40), ((1, 2, 3, 7), 70), ((1, 2, 3, 7, 5), 50), ((9, 7, 5), 50)):
        assert next(iter(after(source, branch(*text)))) == token, text


def test_as_published_only_rows_of_committed_tokens_update_the_table() -> None:
    source = Stand(prompt=False, rejected=False, shared=False)
    draft = Draft((4, 7, 5, 6), (-1, -1, 1, 0))
    rows = ({4: 0.9}, {40: 0.8}, {70: 0.7}, {50: 0.6}, {60: 0.5})
    source.observe([feedback_of(branch(1, 2, 3), *rows, draft=draft, accepted=(0,))])
    assert next(iter(after(source, branch(1, 2, 3)))) == 4
    assert next(iter(after(source, branch(1, 2, 3, 4)))) == 40
    for text in ((1, 2, 3, 7), (1, 2, 3, 7, 5), (1, 2, 3, 4, 6)):
        assert after(source, branch(*text)) == {}


def test_the_targets_distributions_are_averaged_over_branches() -> None:
    source = Stand(mix=False, max_order=2, prompt=False, shared=False)
    source.observe([feedback_of(branch(1, 2), {5: 0.5, 6: 0.25}), feedback_of(branch(8, 1, 2), {6: 0.75, 5: 0.125})])
    assert after(source, branch(3, 1, 2)) == pytest.approx({6: 0.5, 5: 0.3125})


def test_what_is_learned_does_not_depend_on_what_was_asked_before() -> None:
    texts = [branch(number, 7, 7 + number, group=f"problem {number % 2}") for number in range(6)]
    # each round of other branches, in another order than that of the drafts
    rounds = [(texts, texts[::-1]), (texts[:3], texts[2:4]), (texts[4:], texts[4:][::-1])]
    eager, silent = Stand(), Stand()
    for drafted, learned in rounds:
        eager.root_states(drafted)
        for source in (eager, silent):
            source.observe([feedback_of(of, {of.tokens[0] + 20: 0.9, 3: 0.05}) for of in learned])
    for of in texts:
        assert after(eager, of) == after(silent, of)
        assert next(iter(after(eager, of))) == of.tokens[0] + 20


@pytest.mark.parametrize("shared", [False, True])
def test_problems_see_each_other_only_if_shared(shared: bool) -> None:
    source = Stand(shared=shared, prompt=False)
    source.observe([feedback_of(branch(1, 2, group="one"), {5: 0.9})])
    assert list(after(source, branch(1, 2, group="one"))) == [5]
    assert list(after(source, branch(1, 2, group="other"))) == ([5] if shared else [])
    source.observe([feedback_of(branch(1, 2, group="other"), {6: 0.9})])
    assert next(iter(after(source, branch(1, 2, group="one")))) == 5
    assert next(iter(after(source, branch(1, 2, group="other")))) == 6


def test_a_problems_prompt_is_its_first_lesson() -> None:
    prompt = branch(1, 2, 3, 9, 8, 1, 2, 3)
    assert after(Stand(mix=False, shared=False), prompt) == pytest.approx({9: 1.0})
    assert next(iter(after(Stand(), prompt))) == 9
    assert after(Stand(prompt=False), prompt) == {}


def test_what_others_ask_says_nothing() -> None:
    """A prompt is not learned for all problems: the target did not say it."""
    source = Stand()
    source.root_states([branch(1, 2, 3, group="one")])
    assert after(source, branch(9, 8, 1, 2, group="other")) == {}


def test_a_prompt_is_learned_once() -> None:
    """Not again with every branch, whose own text the target has spoken about better."""
    source = Stand(mix=False, max_order=2, shared=False)
    prompt = branch(1, 2, 3, 1, 2)
    source.observe([feedback_of(prompt, {4: 0.5})])
    source.root_states([prompt, branch(1, 2, 3, 1, 2, 3, 1, 2)])
    assert after(source, prompt) == pytest.approx({3: 0.5, 4: 0.25})


def test_the_beginning_of_a_text_is_a_context_of_its_own() -> None:
    source = Stand(max_order=3, min_order=3, mix=False, prompt=False, shared=False)
    source.observe(
        [feedback_of(branch(5), {1: 0.9}), feedback_of(branch(6, 5), {2: 0.9}), feedback_of(branch(7, 6, 5), {3: 0.9})]
    )
    for text, expected in (((5,), [1]), ((6, 5), [2]), ((7, 6, 5), [3]), ((4, 7, 6, 5), [3]), ((7, 5), []), ((6,), [])):
        assert list(after(source, branch(*text))) == expected, text


@every_kind
def test_a_step_down_is_where_the_longer_branch_stands(kind: str) -> None:
    source = Stand(**KINDS[kind])
    texts = [(5,), (6, 5), tuple(range(20))]
    state = source.root_states([branch(*text) for text in texts])
    for token in (3, 4, 3):
        texts = [(*text, token) for text in texts]
        state = source.advance(state, np.full(3, token))
        anchors = source.root_states([branch(*text) for text in texts])
        np.testing.assert_array_equal(state.tails_FO, anchors.tails_FO)
        np.testing.assert_array_equal(state.salts_FZ, anchors.salts_FZ)


@every_kind
def test_successors_are_well_formed_and_rows_independent(kind: str) -> None:
    source, rng, num_candidates = Stand(**KINDS[kind]), np.random.default_rng(0), 0
    for _, levels in BranchStream(seed=1).run_rounds(source, 40):
        for level in levels:
            check_next_tokens(level.next_tokens, len(level.owners), probabilities=True)
            rows = rng.integers(len(level.owners), size=5)
            again = source.next_tokens(level.state[rows])
            np.testing.assert_array_equal(again.ids_FK, level.next_tokens.ids_FK[rows])
            np.testing.assert_array_equal(again.logp_FK, level.next_tokens.logp_FK[rows])
            np.testing.assert_array_equal(again.trust_F, level.next_tokens.trust_F[rows])
            num_candidates += int((level.next_tokens.ids_FK >= 0).sum())
        source.table.assert_invariants()
    assert num_candidates > 100
    empty = source.root_states([])
    check_next_tokens(source.next_tokens(empty), 0, probabilities=True)
    check_next_tokens(source.next_tokens(source.advance(empty, np.empty(0, dtype=np.int64))), 0, probabilities=True)
    source.observe([])


class Published:
    """The paper's rule over plain texts: running means per n-gram, the longest known one answers alone."""

    def __init__(self, orders: int = 4, width: int = 10) -> None:
        self.orders, self.width = orders, width
        self.table: dict[tuple[str, Tokens], tuple[int, dict[int, float]]] = {}
        self.problems: set[str] = set()

    def contexts(self, group: str, text: Tokens) -> list[tuple[str, Tokens]]:
        padded = (-1,) * self.orders + text
        return [(group, padded[-order:]) for order in range(self.orders, 0, -1)]

    def begin(self, branches: Sequence[Branch]) -> None:
        for one in branches:
            if one.group not in self.problems:
                self.problems.add(one.group)
                for end in range(1, len(one.tokens)):
                    self.learn(one.group, one.tokens[:end], {one.tokens[end]: 1.0})

    def learn(self, group: str, text: Tokens, new_probs: dict[int, float]) -> None:
        for key in self.contexts(group, text):
            met, old = self.table.get(key, (0, {}))
            mean = {t: (met * old.get(t, 0) + new_probs.get(t, 0)) / (met + 1) for t in old.keys() | new_probs.keys()}
            self.table[key] = met + 1, dict(sorted(mean.items(), key=lambda item: -item[1])[: self.width])

    def observe(self, feedback: Sequence[Feedback]) -> None:
        for outcome in feedback:
            for row, (ids, logprobs) in enumerate(zip(*outcome.top_tokens(), strict=True)):
                path = tuple(outcome.draft.tokens[node] for node in outcome.draft.path_to(row - 1))
                new_probs = dict(zip(ids.tolist(), np.exp(logprobs).tolist(), strict=True))
                self.learn(outcome.branch.group, outcome.branch.tokens[:] + path, new_probs)

    def after(self, group: str, text: Tokens) -> dict[int, float]:
        known = [self.table[key][1] for key in self.contexts(group, text) if key in self.table]
        return known[0] if known else {}


def untied(feedback: Sequence[Feedback], rng: np.random.Generator) -> list[Feedback]:
    """With other numbers, so that no two tokens are equally likely."""
    new = []
    for outcome in feedback:
        ids, _ = outcome.top_tokens()
        p = -np.sort(-rng.dirichlet(np.ones(ids.shape[1] + 3), size=len(ids)), axis=1)
        new.append(replace(outcome, topk_logprobs=np.log(p[:, :-3] + 1e-4).astype(np.float32)))
    return new


def test_without_mixing_it_is_the_published_rule() -> None:
    source, plain = Stand(max_order=4, mix=False, shared=False, recent=None), Published()
    stream, rng, num_queries = BranchStream(seed=8, vocabulary=12), np.random.default_rng(8), 0
    for _ in range(60):
        branches = stream.next_round()
        plain.begin(branches)
        levels, drafts = stream.walk_source(source, branches)
        for level in levels:
            contexts = zip(
                level.next_tokens.ids_FK, level.next_tokens.logp_FK, level.owners, level.contexts, strict=True
            )
            for ids, logp, owner, context in contexts:
                expected = plain.after(branches[owner].group, context)
                there = ids >= 0
                np.testing.assert_allclose(np.exp(logp[there]), sorted(expected.values(), reverse=True), atol=1e-5)
                for token, p in zip(ids[there].tolist(), np.exp(logp[there]).tolist(), strict=True):
                    assert p == pytest.approx(expected[token], abs=1e-5)
                num_queries += len(expected) > 0
        feedback = untied(stream.commit_random(source, branches, drafts), rng)
        source.observe(feedback)
        plain.observe(feedback)
    assert num_queries > 500


def test_memory_is_bounded_over_many_problems() -> None:
    source, rng = Stand(capacity=3000, max_order=3), np.random.default_rng(0)
    sizes = []
    for problem in range(5000):
        text = tuple(rng.integers(1000, size=12).tolist())
        source.root_states([branch(*text, group=f"problem {problem}")])
        if problem % 500 == 499:
            sizes.append(source.size_bytes)
            source.table.assert_invariants()
    assert sizes[-1] == sizes[2] <= 3000 * 4 * 150
    assert source.num_problems <= 4096


def test_table_without_a_capacity_is_sized_from_the_running_branches_within_its_bound() -> None:
    source = Stand(max_order=3)
    sizes = []
    for length in (10, 200_000, 2_000_000, 10):
        source.root_states([branch(*[7] * length), branch(*[8] * length)])
        sizes.append(source.table.capacity)
    assert sizes == [400_000, 2 * 200_000 * 3 * 2, 4_000_000, 400_000]
    assert Stand(capacity=900).table.capacity == 900


def test_a_problem_of_long_ago_is_learned_anew() -> None:
    source = Stand(capacity=500, max_order=2, shared=False)
    first = branch(1, 2, 3, 9, 1, 2, 3, group="first")
    assert next(iter(after(source, first))) == 9
    for problem in range(5000):
        source.root_states([branch(4, 5, 6, group=f"problem {problem}")])
    assert next(iter(after(source, first))) == 9


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_order": 0}, "max_order must be an int >= 1, got 0"),
        ({"width": True}, "width must be an int >= 1, got True"),
        ({"capacity": 1.5}, "capacity must be an int >= 1 or null, got 1.5"),
        ({"min_order": 13}, "min_order must be at most max_order=12, got 13"),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stand(**knobs)


def test_what_was_written_in_rounds_without_feedback_is_learned_with_the_next() -> None:
    source = Stand(max_order=3, prompt=False, shared=False)
    prompt, text = (1, 2, 3), [4, 5, 6, 7, 8]
    params = SamplingParams(max_tokens=50)

    def view(length: int, request_id: int = 9) -> Branch:
        return Branch(request_id, "a problem", (*prompt, *text[:length]), 1, params, 50 - length)

    source.observe([feedback_of(view(3), {7: 0.9})])
    assert list(after(source, branch(2, 3))) == [4], "its first token, though no round of it was seen"
    assert list(after(source, branch(5, 6))) == [7]
    assert list(after(source, branch(0, 1))) == [], "the prompt was there before the request"
    # two tokens further on, of which one was seen: neither twice
    source.observe([feedback_of(view(5), {1: 0.9})])
    assert list(after(source, branch(6, 7))) == [8]
    twice = Stand(max_order=3, prompt=False, shared=False)
    for length in range(5):
        twice.observe([feedback_of(view(length), {text[length]: 1.0})])
    for at in range(1, 5):
        context = branch(*prompt, *text[:at])
        assert list(after(source, context)) == list(after(twice, context))
    assert len(source.table) == len(twice.table) + 3, "the contexts before the last token"


def test_of_long_pauses_only_the_newest_tokens_are_learned() -> None:
    source = Stand(max_order=2, prompt=False, shared=False)
    text = tuple(range(1, 2000))
    source.observe([feedback_of(Branch(9, "a problem", text, 1, SamplingParams(max_tokens=1998), 0), {1: 0.9})])
    assert list(after(source, branch(1997, 1998))) == [1999]
    assert list(after(source, branch(10, 11))) == []
