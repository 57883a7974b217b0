"""Draft trees: what is drawn at a node, which nodes are kept, and what an outcome teaches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from decoding.core import SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.noise import gumbel, gumbel_of, row_keys
from decoding.round import Speculation
from decoding.speculation.controllers.chain import Chain
from decoding.speculation.controllers.fixed import Fixed
from decoding.speculation.drafters.calibration import Calibration, calibrated, kind_of
from decoding.speculation.drafters.child_selection import CODES
from decoding.speculation.drafters.source import Ints, Successors
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Controller, Draft, DrawKind, Feedback, Plan, Price, Template
from tests.decoding.test_engine import TOKENIZER, mixed_requests
from tests.decoding.test_noise import by_hand
from tests.support.fakes import HashBackend, _mix
from tests.support.streams import Stream

DRAWS: list[DrawKind] = list(CODES)
PRUNABLE: list[DrawKind] = ["coupled", "likely"]
MOST = 0.995  # what a guess is put at, at most


class Texts(list[Tokens]):
    """A state that is the contexts themselves."""

    def __getitem__(self, rows: Any) -> Any:
        return Texts(list.__getitem__(self, int(row)) for row in rows)


@cache
def _made_up(read: Tokens, vocabulary: int, known: int, scarce: bool) -> dict[int, float]:
    rng = np.random.default_rng(abs(hash(read)))
    p = rng.dirichlet(np.full(vocabulary, 0.6)) * rng.uniform(0.7, 1.0)
    known = int(rng.integers(known + 1)) if scarce else known
    return {int(t): float(np.float32(p[t])) for t in np.argsort(-p)[:known]}


@dataclass
class Fake:
    """A made-up distribution for every context: `known` of `vocabulary` tokens, from the last `reads` of them."""

    vocabulary: int = 8
    known: int = 8
    reads: int = 3
    scarce: bool = False  # some contexts know nothing, or little
    feedback_k: int = 0
    has_probabilities: bool = True
    seen: list[Feedback] = field(default_factory=list)

    def table(self, context: Tokens) -> dict[int, float]:
        """Tokens and their probabilities, best first."""
        read = context[len(context) - self.reads :] if self.reads else ()
        return _made_up(read, self.vocabulary, self.known, self.scarce)

    def anchors(self, branches: Sequence[Branch]) -> Texts:
        return Texts(branch.tokens for branch in branches)

    def successors(self, state: Texts) -> Successors:
        ids = np.full((len(state), self.known), -1, dtype=np.int64)
        logp = np.full(ids.shape, -np.inf, dtype=np.float32)
        for f, context in enumerate(state):
            table = self.table(context)
            ids[f, : len(table)], logp[f, : len(table)] = list(table), np.log(list(table.values()))
        return Successors(ids, logp, np.array([context[-1] % 3 for context in state], dtype=np.int64))

    def descend(self, state: Texts, tokens_F: Ints) -> Texts:
        return Texts((*context, int(token)) for context, token in zip(state, tokens_F, strict=True))

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.seen += feedback


def branch(tokens: Tokens = (1, 2, 3), seed: int = 1, remaining: int = 100, **params: Any) -> Branch:
    return Branch(seed, "a problem", tokens, seed, SamplingParams(**params), remaining)


def some_branches(rng: random.Random, count: int, vocabulary: int = 8) -> list[Branch]:
    settings: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"temperature": 0.6, "top_p": 0.9}, {"top_k": 3}]
    return [
        branch(
            tuple(rng.randrange(vocabulary) for _ in range(rng.randint(1, 9))),
            rng.randrange(1 << 40),
            rng.choice([1, 2, 3, 5, 100]),
            **rng.choice(settings),
        )
        for _ in range(count)
    ]


def some_template(rng: random.Random, nodes: int) -> Template:
    parents, ranks, children = [], [], dict.fromkeys(range(-1, nodes), 0)
    for node in range(nodes):
        parents.append(rng.choice([*[-1, *range(node)][: 1 + rng.randint(0, 4)], node - 1]))
        ranks.append(children[parents[-1]])
        children[parents[-1]] += 1
    return Template(tuple(parents), tuple(ranks))


def taught(drafter: TreeDrafter, seed: int) -> TreeDrafter:
    """After some experience, of whatever kind."""
    rng, counts = np.random.default_rng(seed), drafter._calibration
    counts.trials[:] = rng.integers(0, 50, size=len(counts.trials))
    counts.hits[:] = counts.trials * rng.uniform(size=len(counts.trials))
    return drafter


def paths(drafts: Iterable[Draft]) -> dict[tuple[int, Tokens], float]:
    """Every node of every draft by its branch and tokens, and its reach."""
    return {
        (b, tuple(draft.tokens[i] for i in draft.path_to(node))): draft.reach[node]
        for b, draft in enumerate(drafts)
        for node in range(len(draft))
    }


@pytest.mark.parametrize("draw", DRAWS)
def test_drafts_are_sound_and_within_their_plan(draw: DrawKind) -> None:
    """A token drawn twice at one parent used to get the lesser chance of the two, and children above it."""
    rng = random.Random(0)
    for seed in range(150):
        source = Fake(known=rng.randint(1, 8), scarce=rng.random() < 0.5)
        drafter = taught(TreeDrafter(source, draw, width=rng.randint(1, 4), depth=rng.randint(1, 6)), seed)
        branches = some_branches(rng, rng.randint(1, 5))
        template = some_template(rng, rng.randint(0, 12)) if draw not in PRUNABLE or seed % 2 else None
        nodes = tuple(rng.randint(0, 9) for _ in branches)
        plan = Plan(nodes, sum(nodes), template=template)
        if template is None:
            total = rng.randint(1, 12)
            nodes = tuple(rng.choice([0, total]) for _ in branches)
            plan = Plan(nodes, total, rng.choice([None, Price(1.0, 0.01), Price(1.0, 0.2)]))
        drafts = drafter.propose(branches, plan)
        assert len(drafts) == len(branches)
        assert sum(map(len, drafts)) <= plan.total
        for one, most, draft in zip(branches, nodes, drafts, strict=True):
            draft.check()
            assert len(draft) <= most
            assert max(draft.depths, default=0) <= min(one.remaining - 1, drafter.depth)
            if plan.price is not None:
                assert all(reach > plan.price.floor(len(branches)) for reach in draft.reach)
            assert (draft.drawn is not None) == (draw not in PRUNABLE and len(draft) > 0)


@pytest.mark.parametrize("draw", DRAWS)
def test_drafts_from_stand_are_sound_as_it_learns(draw: DrawKind) -> None:
    drafter, drafted = TreeDrafter(Stand(max_order=3), draw, depth=5), 0
    stream, rng = Stream(seed=4), random.Random(4)
    for _ in range(50):
        branches = stream.round()
        template = some_template(rng, 12) if draw not in PRUNABLE or rng.random() < 0.5 else None
        drafts = drafter.propose(branches, Plan((12,) * len(branches), 12 * len(branches), template=template))
        for draft in drafts:
            draft.check()
        drafted += sum(map(len, drafts))
        drafter.observe(stream.commit(drafter.source, branches, drafts))
    assert drafted > 300


@pytest.mark.parametrize("draw", DRAWS)
def test_nobody_to_draft_for_is_fine(draw: DrawKind) -> None:
    """A round of nothing but prompts; a controller that plans by rows may have some to spare."""
    drafter = TreeDrafter(Fake(), draw)
    assert drafter.propose([], Plan((), 5, template=Template.chain(3))) == []
    drafter.observe([])


def test_no_rows_for_anybody_is_no_draft() -> None:
    for template in (None, Template.chain(3)):
        assert TreeDrafter(Fake()).propose([branch()], Plan((0,), 0, template=template)) == [Draft()]


class TestBestFirst:
    """Against enumeration of everything that could be guessed."""

    @staticmethod
    def children(source: Fake, drafter: TreeDrafter, one: Branch, text: Tokens) -> dict[int, float]:
        """Every child of a context and its estimated chance, in the order drawn."""
        table, params, cold = source.table(text), one.params, one.params.temperature == 0
        if not table:
            return {}
        ids, logp = np.array(list(table)), np.log(list(table.values()))
        q = np.exp(logp - logp[0]) / np.exp(logp - logp[0]).sum() if cold else by_hand(logp, params)
        ids, q = ids[q > 0], q[q > 0]
        scores = np.log(q)
        if drafter.draw == "coupled" and not cold:
            keys = torch.from_numpy(row_keys([one.seed], [len(text)]))
            scores = scores + gumbel(keys, torch.from_numpy(ids))[0].numpy()
        chance = np.exp(scores - scores.max())
        chance = chance / chance.sum() if drafter.draw == "coupled" else q
        hits, trials, found = drafter._calibration.hits, drafter._calibration.trials, {}
        for rank, k in enumerate(np.argsort(-scores, kind="stable")[: drafter.width]):
            kind = kind_of(text[-1] % 3, rank, float(chance[k]))
            found[int(ids[k])] = calibrated(hits, trials, kind, float(chance[k]))
        return found

    def everything(
        self, source: Fake, drafter: TreeDrafter, branches: Sequence[Branch]
    ) -> dict[tuple[int, Tokens], float]:
        found: dict[tuple[int, Tokens], float] = {}
        for b, one in enumerate(branches):
            above: dict[Tokens, float] = {(): 1.0}
            for _ in range(min(drafter.depth, one.remaining - 1)):
                above = {
                    (*path, token): reach * chance
                    for path, reach in above.items()
                    for token, chance in self.children(source, drafter, one, one.tokens + path).items()
                }
                found |= {(b, path): reach for path, reach in above.items()}
        return found

    @pytest.mark.parametrize(("draw", "scarce"), product(PRUNABLE, [False, True]))
    def test_it_takes_the_likeliest_wherever_they_are(self, draw: DrawKind, scarce: bool) -> None:
        rng = random.Random(1)
        for seed in range(40):
            source = Fake(scarce=scarce)
            drafter = TreeDrafter(source, draw, width=3, depth=4)
            if seed % 2:
                taught(drafter, seed)
            branches = some_branches(rng, rng.randint(1, 4))
            total = rng.randint(1, 40)
            drafts = drafter.propose(branches, Plan((total,) * len(branches), total))
            every = self.everything(source, drafter, branches)
            best = dict(sorted(every.items(), key=lambda item: -item[1])[:total])
            got = paths(drafts)
            assert len(got) == len(best)
            np.testing.assert_allclose(sorted(got.values()), sorted(best.values()), rtol=1e-3)
            for path, reach in got.items():  # the same nodes, but for ties
                assert reach == pytest.approx(every[path], rel=1e-3)

    @pytest.mark.parametrize("row_seconds", [0.003, 0.02, 0.1, 1.0])
    def test_it_takes_as_many_as_raise_tokens_per_second(self, row_seconds: float) -> None:
        """Of all numbers of nodes, the likeliest first, the one with the most tokens in the least time."""
        rng, price = random.Random(5), Price(0.1, row_seconds)
        drafter = TreeDrafter(Fake(), "likely", width=3, depth=4)
        for _ in range(10):
            branches = [branch(tuple(rng.randrange(8) for _ in range(4)), seed) for seed in range(rng.randint(1, 4))]
            drafter._level_seconds = 0.0  # drafting takes no time
            got = paths(drafter.propose(branches, Plan((30,) * len(branches), 30, price)))
            reach = sorted(self.everything(Fake(), drafter, branches).values(), reverse=True)[:30]
            rates = [(len(branches) + sum(reach[:n])) / (0.1 + row_seconds * n) for n in range(31)]
            assert len(got) == np.argmax(rates)

    def test_a_branch_has_no_more_than_its_own_share(self) -> None:
        """What one may not have goes to the next likeliest of the others."""
        source, rng = Fake(), random.Random(2)
        drafter = TreeDrafter(source, "likely", width=3, depth=4)
        for _ in range(20):
            branches = [branch(tuple(rng.randrange(8) for _ in range(4)), seed) for seed in range(3)]
            nodes, total = (rng.randint(0, 6), rng.randint(0, 6), 40), 20
            got = paths(drafter.propose(branches, Plan(nodes, total)))
            left, best = list(nodes), list[float]()
            for (b, _), reach in sorted(self.everything(source, drafter, branches).items(), key=lambda item: -item[1]):
                if left[b] and len(best) < total:
                    left[b] -= 1
                    best.append(reach)
            np.testing.assert_allclose(sorted(got.values(), reverse=True), best, rtol=1e-3)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("draw", PRUNABLE)
    def test_a_table_has_a_faster_way_to_the_same_drafts(self, draw: DrawKind, seed: int) -> None:
        stream, rng, drafted = Stream(seed), random.Random(seed), 0
        fast, slow = (TreeDrafter(Stand(max_order=4), draw, width=3, depth=5) for _ in range(2))
        slow._table = None
        for _ in range(40):
            branches = stream.round()
            total = rng.randint(0, 40)
            nodes = tuple(rng.choice([total, rng.randint(0, 5)]) for _ in branches)
            plan = Plan(nodes, total, rng.choice([None, Price(0.1, 0.0), Price(0.1, 0.002), Price(0.1, 0.02)]))
            slow._level_seconds = 0.0  # drafting takes no time
            drafts = fast.propose(branches, plan)
            got, expected = paths(drafts), paths(slow.propose(branches, plan))
            np.testing.assert_allclose(sorted(got.values()), sorted(expected.values()), rtol=1e-5)
            least = min(got.values(), default=0.0)  # of equals at the end either may take any
            assert all((got | expected)[path] == pytest.approx(least) for path in got.keys() ^ expected.keys())
            drafted += len(got)
            feedback = stream.commit(fast.source, branches, drafts)
            fast.observe(feedback)
            slow.observe(feedback)
        assert drafted > 200

    @pytest.mark.parametrize("draw", ["without_replacement", "iid"])
    def test_a_draw_that_rules_must_undo_is_refused(self, draw: DrawKind) -> None:
        with pytest.raises(ValueError, match=f"draw={draw} may not be pruned .* needs a controller with a template"):
            TreeDrafter(Fake(), draw).propose([branch()], Plan((4,), 4))


class TestTemplate:
    SHAPE = Template((-1, -1, 0, 0, 1, 2, 0), (0, 1, 0, 1, 0, 0, 2))

    def test_it_is_filled_by_rank(self) -> None:
        source = Fake()
        (draft,) = TreeDrafter(source, "likely").propose([branch((1, 2, 3))], Plan((7,), 7, template=self.SHAPE))

        def best(*text: int) -> list[int]:
            return list(source.table(text))

        a, b = best(1, 2, 3)[:2]
        c, d, e = best(2, 3, a)[:3]
        assert draft.tokens == (a, b, c, d, e, best(2, 3, b)[0], best(3, a, c)[0])
        assert draft.parents == (-1, -1, 0, 0, 0, 1, 2)
        assert draft.reach[0] == pytest.approx(source.table((1, 2, 3))[a] / sum(source.table((1, 2, 3)).values()))

    @pytest.mark.parametrize("nodes", range(8))
    def test_its_first_nodes_are_a_template_too(self, nodes: int) -> None:
        whole, cut = (
            TreeDrafter(Fake(), "likely").propose([branch()], Plan((n,), n, template=self.SHAPE))[0] for n in (7, nodes)
        )
        assert len(cut) == nodes
        first = sorted((self.SHAPE.parents[i], self.SHAPE.ranks[i]) for i in range(nodes))
        assert len(first) == len(cut)
        assert paths([cut]).items() <= paths([whole]).items()

    def test_a_context_that_knows_too_little_leaves_holes(self) -> None:
        (draft,) = TreeDrafter(Fake(known=1), "likely").propose([branch()], Plan((7,), 7, template=self.SHAPE))
        assert draft.parents == (-1, 0, 1)

    def test_every_branch_has_its_own_number(self) -> None:
        plan = Plan((0, 7, 2), 9, template=self.SHAPE)
        drafts = TreeDrafter(Fake(), "likely").propose([branch((i,) * 3) for i in range(3)], plan)
        assert [len(draft) for draft in drafts] == [0, 7, 2]
        alone = TreeDrafter(Fake(), "likely").propose([branch((1,) * 3)], Plan((7,), 7, template=self.SHAPE))
        assert drafts[1] == alone[0]

    def test_no_deeper_than_the_branch_or_the_drafter_goes(self) -> None:
        plan = Plan((9,), 9, template=Template.chain(9))
        assert len(TreeDrafter(Fake()).propose([branch(remaining=5)], plan)[0]) == 4
        assert len(TreeDrafter(Fake(), depth=3).propose([branch()], plan)[0]) == 3
        assert len(TreeDrafter(Fake()).propose([branch(remaining=1)], plan)[0]) == 0


class Sums(tuple[Any, Any]):
    """What `HashBackend` sees of a context: its sum and its length."""

    def __getitem__(self, rows: Any) -> Any:
        sums, lengths = tuple(self)
        return Sums((sums[rows], lengths[rows]))


@dataclass
class Clairvoyant:
    """`HashBackend`'s own distribution after every context."""

    backend: HashBackend
    feedback_k: int = 0
    has_probabilities: bool = True

    def anchors(self, branches: Sequence[Branch]) -> Sums:
        state = Sums((np.zeros(len(branches), dtype=np.uint64), np.zeros(len(branches), dtype=np.int64)))
        sums, lengths = tuple(state)
        for b, one in enumerate(branches):
            at = np.arange(len(one.tokens), dtype=np.uint64)
            tokens = np.array(one.tokens, dtype=np.uint64)
            sums[b] = _mix(tokens * np.uint64(65537) + _mix(at + np.uint64(1))).sum(dtype=np.uint64)
            lengths[b] = len(one.tokens)
        return state

    def successors(self, state: Sums) -> Successors:
        logp_FV = self.backend.head(next(iter(state))).log_softmax(-1)
        logp_FK, ids_FK = logp_FV.sort(dim=-1, descending=True)
        return Successors(ids_FK.numpy(), logp_FK.numpy(), np.zeros(len(ids_FK), dtype=np.int64))

    def descend(self, state: Sums, tokens_F: Ints) -> Sums:
        sums, lengths = tuple(state)
        rows = tokens_F.astype(np.uint64) * np.uint64(65537) + _mix(lengths.astype(np.uint64) + np.uint64(1))
        return Sums((np.add(sums, _mix(rows), dtype=np.uint64), lengths + 1))

    def observe(self, feedback: Sequence[Feedback]) -> None:
        """Knows everything."""


@dataclass
class Watched(TreeDrafter):
    """Keeps what it was told."""

    seen: list[Feedback] = field(default_factory=list)

    def observe(self, feedback: Sequence[Feedback]) -> None:
        self.seen += feedback
        super().observe(feedback)


class TestCoupled:
    """Whoever knows the target's distribution knows its choice: the noise is the target's own."""

    @pytest.mark.parametrize("controller", [Chain(5), Fixed(7)], ids=["chain", "tree"])
    def test_the_first_child_is_the_targets_choice(self, controller: Controller) -> None:
        backend = HashBackend()
        drafter = Watched(Clairvoyant(backend), width=1 if isinstance(controller, Chain) else 3)
        speculation = Speculation(drafter, controller)
        engine = LocalEngine(backend, decode=TOKENIZER.decode, kv_bytes=4000, speculation=speculation)
        try:
            done = asyncio.run(engine.generate(mixed_requests(30)))
        finally:
            engine.close()
        judged = 0
        for seen in drafter.seen:
            for node in (-1, *seen.accepted):
                if node in seen.draft.parents:
                    assert seen.draft.parents.index(node) in seen.accepted
                    judged += 1
        assert judged > 100
        if isinstance(controller, Chain):
            assert sum(g.spent.accepted for g in done) == sum(g.spent.drafted for g in done) > 100

    @pytest.mark.parametrize("draw", PRUNABLE)
    def test_at_temperature_zero_the_children_are_the_likeliest(self, draw: DrawKind) -> None:
        """All of them, filters or not: the runner-up may be what the target thinks best."""
        source, shape = Fake(), Plan((4,), 4, template=Template((-1,) * 4, (0, 1, 2, 3)))
        for seed in range(10):
            one = branch((seed, 2, 3), seed, temperature=0.0, top_k=1, top_p=0.1)
            (draft,) = TreeDrafter(source, draw).propose([one], shape)
            assert draft.tokens == tuple(source.table((seed, 2, 3)))[:4]

    @pytest.mark.parametrize("temperature", [0.7, 1.0])
    def test_estimates_are_right_once_calibrated(self, temperature: float) -> None:
        """Nodes put at 10 % come true in 10 % of cases."""
        backend = HashBackend(scale=4.0)
        drafter = Watched(Clairvoyant(backend), "likely", width=4)
        params = SamplingParams(max_tokens=20, temperature=temperature)
        requests = [replace(request, params=params) for request in mixed_requests(150, seed=3)]
        engine = LocalEngine(
            backend, decode=TOKENIZER.decode, kv_bytes=9000, speculation=Speculation(drafter, Fixed(6))
        )
        try:
            asyncio.run(engine.generate(requests))
        finally:
            engine.close()
        seen = drafter.seen[len(drafter.seen) // 3 :]
        reach = np.array([r for one in seen for r in one.draft.reach])
        came_true = np.array([i in one.accepted for one in seen for i in range(len(one.draft))])
        for low, high in ((0.02, 0.06), (0.06, 0.12), (0.12, 0.2), (0.2, 0.4)):
            band = (reach >= low) & (reach < high)
            assert band.sum() > 50
            assert came_true[band].mean() == pytest.approx(reach[band].mean(), abs=2 / np.sqrt(band.sum()))


def chi2(counts: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def dependence(one: Sequence[int], other: Sequence[int], kinds: int = 4) -> float:
    """Chi-squared of the independence of two columns, `(kinds - 1)^2` degrees of freedom."""
    counts = np.histogram2d(one, other, bins=np.arange(kinds + 1))[0]
    return chi2(counts, np.outer(counts.sum(1), counts.sum(0)) / len(one))


class TestRandomDraws:
    """Frequencies over seeds. Thresholds are at p = 0.001."""

    N = 4000
    SOURCE = Fake(vocabulary=4, known=4, reads=0)  # the same everywhere
    FAN = Template((-1, -1, 0, 1), (0, 1, 0, 0))  # two children with one each

    def q(self) -> npt.NDArray[np.float64]:
        table = self.SOURCE.table(())
        p = np.array([table[t] for t in range(4)])
        return np.array(p / p.sum())

    def drawn(self, draw: DrawKind, template: Template, tokens: Tokens = (1, 2, 3), count: int = N) -> list[Draft]:
        branches, nodes = [branch(tokens, seed) for seed in range(count)], len(template)
        plan = Plan((nodes,) * count, nodes * count, template=template)
        return TreeDrafter(self.SOURCE, draw).propose(branches, plan)

    def target(self, position: int) -> list[int]:
        """What the target would say there, if the source's distribution were its own."""
        noise = gumbel(torch.from_numpy(row_keys(range(self.N), [position] * self.N)), torch.arange(4))
        chosen: list[int] = (torch.from_numpy(np.log(self.q())) + noise).argmax(1).tolist()
        return chosen

    def test_without_replacement_is_a_sample_of_distinct_tokens(self) -> None:
        q, drafts = self.q(), self.drawn("without_replacement", self.FAN)
        first, second = zip(*(draft.tokens[:2] for draft in drafts), strict=True)
        pairs = np.histogram2d(first, second, bins=np.arange(5))[0]
        expected = np.array([[0 if i == j else q[i] * q[j] / (1 - q[i]) for j in range(4)] for i in range(4)])
        some = expected > 0
        assert pairs[~some].sum() == 0
        assert chi2(pairs[some], expected[some] * self.N) < 31.3  # 11 degrees of freedom

    def test_the_order_drawn_is_on_record(self) -> None:
        for draft in self.drawn("without_replacement", self.FAN, count=50):
            assert draft.drawn is not None
            assert draft.drawn.kind == "without_replacement"
            assert draft.drawn.draws == {-1: (0, 1), 0: (2,), 1: (3,)}
            for ids, q in draft.drawn.q.values():
                assert (ids.dtype, q.dtype, q.sum()) == (np.int64, np.float64, pytest.approx(1))
                np.testing.assert_allclose(q, self.q()[ids], rtol=1e-5)

    @pytest.mark.parametrize("draw", ["without_replacement", "iid"])
    def test_draws_know_nothing_of_the_target_of_other_rounds_or_of_each_other(self, draw: DrawKind) -> None:
        """The target's choice at the same position, the round after, and the nodes of one draft."""
        fan = self.FAN if draw == "without_replacement" else Template.chain(3)
        drafts, later = self.drawn(draw, fan), self.drawn(draw, fan, tokens=(1, 2, 3, 0))
        first = [draft.tokens[0] for draft in drafts]
        target, next_target = self.target(3), self.target(4)
        below = [draft.tokens[draft.parents.index(0)] for draft in drafts]
        for other in (target, next_target, [draft.tokens[0] for draft in later], below, first[1:] + first[:1]):
            assert dependence(first, other) < 27.9
        for other in (next_target, [draft.tokens[0] for draft in later]):
            assert dependence(below, other) < 27.9
        if draw == "without_replacement":
            assert dependence(below, [draft.tokens[draft.parents.index(1)] for draft in drafts]) < 27.9

    def test_independent_draws_repeat_and_become_one_node(self) -> None:
        q, drafts = self.q(), self.drawn("iid", Template((-1, -1, -1), (0, 1, 2)))
        triples = []
        for draft in drafts:
            assert draft.drawn is not None
            draws = draft.drawn.draws[-1]
            assert len(draws) == 3
            assert len(draft) == len(set(draws))
            triples.append([draft.tokens[node] for node in draws])
        assert min(map(len, drafts)) == 1
        for column in zip(*triples, strict=True):
            assert chi2(np.bincount(column, minlength=4), q * self.N) < 16.3  # 3 degrees of freedom
        one, two, three = zip(*triples, strict=True)
        assert max(dependence(one, two), dependence(two, three), dependence(one, three)) < 27.9

    def test_a_node_drawn_twice_has_the_children_of_both(self) -> None:
        twice = 0
        for draft in self.drawn("iid", self.FAN, count=500):
            assert draft.drawn is not None
            draft.check()
            if draft.drawn.draws[-1] == (0, 0):
                assert len(draft.drawn.draws[0]) == 2
                twice += 1
        assert twice > 50

    @pytest.mark.parametrize("draw", DRAWS)
    def test_a_draft_is_a_function_of_seed_and_text(self, draw: DrawKind) -> None:
        first, again = (self.drawn(draw, Template.chain(3), count=200) for _ in range(2))
        assert [draft.tokens for draft in first] == [draft.tokens for draft in again]


FILTERS: list[dict[str, Any]] = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in product((0.4, 1.0, 1.7), (0, 1, 3), (1.0, 0.6), (0.0, 0.3))
]


@pytest.mark.parametrize("draw", DRAWS)
def test_children_survive_the_targets_filters(draw: DrawKind) -> None:
    source, shape = Fake(reads=2), Template((-1, -1, -1, -1, 0, 0), (0, 1, 2, 3, 0, 1))
    for seed, params in enumerate(FILTERS):
        one = branch((seed % 8, 5), seed, **params)
        (draft,) = TreeDrafter(source, draw).propose([one], Plan((6,), 6, template=shape))
        assert len(draft)
        for node in {*draft.parents}:
            text = one.tokens + tuple(draft.tokens[i] for i in draft.path_to(node))
            table = source.table(text)
            survive = by_hand(np.log(list(table.values())), one.params)
            left = {t: float(p) for t, p in zip(table, survive, strict=True) if p > 0}
            children = {t for t, parent in zip(draft.tokens, draft.parents, strict=True) if parent == node}
            assert children <= left.keys()
            if draft.drawn is not None:
                ids, q = draft.drawn.q[node]
                assert dict(zip(ids.tolist(), q.tolist(), strict=True)) == pytest.approx(left, abs=1e-5)


def test_the_compiled_noise_is_the_targets() -> None:
    rng = np.random.default_rng(0)
    keys = row_keys(rng.integers(1 << 62, size=200).tolist(), rng.integers(1 << 40, size=200))
    ids = np.concatenate([np.arange(20), rng.integers(1 << 20, size=80)])
    expected = gumbel(torch.from_numpy(keys), torch.from_numpy(ids)).numpy()
    got = [[gumbel_of(key, other, token) for token in ids] for key, other in keys]
    np.testing.assert_allclose(got, expected, atol=1e-4)


class TestCalibration:
    @pytest.mark.parametrize(("rate", "first"), product([0.05, 0.5, 0.97], [0.01, 0.5, 0.99]))
    def test_it_converges_to_the_rate_and_follows_it(self, rate: float, first: float) -> None:
        rng, counts, kind = np.random.default_rng(0), Calibration(), kind_of(3, 1, first)
        assert calibrated(counts.hits, counts.trials, kind, first) == pytest.approx(first)
        for truth in (rate, 1 - rate):
            for _ in range(600):
                counts.observe(np.full(20, kind), rng.random(20) < truth)
            assert calibrated(counts.hits, counts.trials, kind, first) == pytest.approx(truth, abs=0.03)

    def test_kinds_are_apart(self) -> None:
        counts = Calibration()
        counts.observe(np.full(1000, kind_of(3, 1, 0.5)), np.ones(1000, dtype=bool))
        for other in (kind_of(2, 1, 0.5), kind_of(3, 0, 0.5), kind_of(3, 1, 0.05)):
            assert calibrated(counts.hits, counts.trials, other, 0.4) == pytest.approx(0.4)
        assert calibrated(counts.hits, counts.trials, kind_of(3, 1, 0.5), 0.5) == MOST

    def test_every_kind_has_a_place_of_its_own(self) -> None:
        kinds = {
            kind_of(trust, rank, chance) for trust in range(16) for rank in range(9) for chance in np.linspace(0, 1, 99)
        }
        assert 0 <= min(kinds) < max(kinds) < len(Calibration().trials)
        assert len(kinds) > 16 * 4 * 6

    def test_only_guesses_whose_parent_was_reached_count(self) -> None:
        r"""   -1
              /  \
             0    1      0 and 2 are kept; 3 was reached and refused, nobody asked about 4
            / \    \
           2   3    4
        """
        shape = Template((-1, -1, 0, 0, 1), (0, 1, 0, 1, 0))
        drafter = TreeDrafter(Fake(), "likely")
        for accepted, tried, right in (((0, 2), 4, 2), ((0,), 4, 1), ((1,), 3, 1), ((1, 4), 3, 2), ((), 2, 0)):
            before = drafter._calibration.trials.sum(), drafter._calibration.hits.sum()
            (draft,) = drafter.propose([branch()], Plan((5,), 5, template=shape))
            assert draft.parents == (-1, -1, 0, 0, 1)
            drafter.observe([Feedback(branch(), draft, accepted), Feedback(branch(), Draft(), ())])
            assert drafter._calibration.trials.sum() - before[0] == pytest.approx(tried, abs=0.1)
            assert drafter._calibration.hits.sum() - before[1] == pytest.approx(right, abs=0.1)

    def test_several_drafts_at_once_are_not_mixed_up(self) -> None:
        drafter, single = TreeDrafter(Fake(), "likely"), TreeDrafter(Fake(), "likely")
        branches = [branch((i, 2, 3)) for i in range(4)]
        drafts = drafter.propose(branches, Plan((5,) * 4, 20, template=Template.chain(5)))
        kept = [(), (0, 1, 2), (0,), (0, 1, 2, 3, 4)]
        feedback = [Feedback(b, d, k) for b, d, k in zip(branches, drafts, kept, strict=True)]
        drafter.observe(feedback)
        for one in feedback:
            single.observe([one])
        np.testing.assert_allclose(drafter._calibration.trials, single._calibration.trials, rtol=1e-2)
        np.testing.assert_allclose(drafter._calibration.hits, single._calibration.hits, rtol=1e-2)
        assert drafter._calibration.hits.sum() == pytest.approx(9, abs=0.1)
        assert drafter._calibration.trials.sum() == pytest.approx(1 + 4 + 2 + 5, abs=0.1)

    def test_a_draft_of_somebody_elses_teaches_nothing(self) -> None:
        drafter = TreeDrafter(Fake())
        drafter.observe([Feedback(branch(), Draft((1, 2), (-1, 0)), (0,))])
        assert drafter._calibration.trials.sum() == 0
        assert isinstance(drafter.source, Fake)
        assert len(drafter.source.seen) == 1


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"width": 0}, "width must be an int >= 1, got 0"),
        ({"depth": 2.0}, "depth must be an int >= 1, got 2.0"),
        ({"draw": "lucky"}, "draw must be one of likely, coupled, without_replacement, iid, got 'lucky'"),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_name(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreeDrafter(Fake(), **knobs)


def test_a_source_that_only_ranks_is_drawn_from_by_rank() -> None:
    with pytest.raises(ValueError, match="TokenRecycling only ranks its guesses: draw must be likely, got coupled"):
        TreeDrafter(TokenRecycling())
    TreeDrafter(TokenRecycling(), "likely")
