"""Draft models that change while they draft: layers that are searched, and weights that learn from refusals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.core import Generation, GenerationRequest, SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.model.backend import Backend
from decoding.model.transformers_checkpoint import HFBackend
from decoding.round import Speculation
from decoding.speculation.controllers.chain import ChainController
from decoding.speculation.draft import Draft
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.layer_search import CONTEXT, WINDOW, LayerSearch, measure_agreement
from decoding.speculation.drafters.online_distillation import OnlineDistillation, find_refusal
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import Branch, Feedback
from reason.bench.tiny_target import make_model
from reason.engines.self_draft import SelfDraftModelSource
from tests.support.fakes import ScriptedBackend
from tests.support.random_models import random_model

PROMPT = (3, 1, 4, 1, 5)
TEXT = tuple(random.Random(0).randrange(50) for _ in range(100))
open_on_cpu = partial(HFBackend, device="cpu", dtype="float32")


def feedback(tokens: Tokens = TEXT) -> list[Feedback]:
    return [Feedback(Branch(0, "", tokens, 0, SamplingParams(), 9), Draft(), ())]


def write(backend: Backend, source: DraftModel | None, *, tokens: int = 60) -> tuple[list[Generation], LocalEngine]:
    """Returns texts of a backend, one after the other, with drafts of this source."""
    parts = Speculation() if source is None else Speculation(TreeDrafter(source), ChainController(4))
    engine = LocalEngine(backend, decode=lambda ids: "", kv_bytes=1 << 22, speculation=parts)
    texts = []
    try:
        for seed in range(3):
            request = GenerationRequest(prefix=PROMPT, params=SamplingParams(max_tokens=tokens), seed=seed)
            texts += asyncio.run(engine.generate([request]))
        engine.assert_invariants()
    finally:
        engine.close()
    return texts, engine


@dataclass
class ScriptedLayers(ScriptedBackend):
    """Predicts the text, but for its last tokens: one is wrong for each needed layer that does not run."""

    needed: frozenset[int]
    num_layers: int = 8
    views: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(TEXT)

    def view_layers(self, layers: Sequence[int]) -> ScriptedBackend:
        self.views.append(tuple(layers))
        script = list(TEXT)
        for i in range(len(self.needed - set(layers))):
            script[-1 - i] = 51
        return ScriptedBackend(script)


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(1, 6), min_size=1, max_size=4))
def test_the_search_finds_the_layers_that_matter_and_keeps_their_number(needed: set[int]) -> None:
    target = ScriptedLayers(frozenset(needed))
    search = LayerSearch(target, skip=0.25, trials=80, every=1, enough=1.0)
    count, agreement = len(search.layers), measure_agreement(search.view_model(), TEXT)
    for _ in range(80):
        changed = search.update_model(feedback())
        now = measure_agreement(search.view_model(), TEXT)
        assert now >= agreement
        assert (changed is not None) == (now > agreement)
        agreement = now
    assert set(search.layers) >= needed
    assert search.num_trials <= 80
    assert all(view[0] == 0 and view[-1] == 7 and len(view) == count == 6 for view in target.views)


def test_trials_are_as_many_as_allowed_and_the_same_in_every_run() -> None:
    def run(**knobs: Any) -> tuple[int, list[tuple[int, ...]]]:
        target = ScriptedLayers(frozenset({2, 5}))
        search = LayerSearch(target, **({"skip": 0.5, "trials": 7, "every": 3, "enough": 1.0} | knobs))
        for _ in range(60):
            search.update_model(feedback())
        return search.num_trials, target.views

    assert run()[0] == 7
    assert run() == run()
    assert run(trials=0)[0] == 0
    assert run(every=10)[0] == 6
    # the first trial agrees well enough
    assert run(enough=0.5)[0] == 1


def test_a_text_that_is_too_short_is_no_trial() -> None:
    search = LayerSearch(ScriptedLayers(frozenset({2})), every=1)
    for _ in range(5):
        assert search.update_model(feedback(TEXT[:WINDOW])) is None
    assert search.num_trials == 0
    assert search.update_model([]) is None


def test_agreement_is_of_the_last_tokens_only() -> None:
    script = list(TEXT)
    script[-5:] = [51] * 5
    assert measure_agreement(ScriptedBackend(script), TEXT) == pytest.approx(1 - 5 / WINDOW)
    script = [51] * (len(TEXT) - WINDOW) + list(TEXT[-WINDOW:])
    assert measure_agreement(ScriptedBackend(script), TEXT) == 1
    assert WINDOW < CONTEXT


def test_a_model_of_two_layers_cannot_skip_any() -> None:
    with pytest.raises(ValueError, match="needs three or more; this one has 2"):
        LayerSearch(ScriptedLayers(frozenset(), num_layers=2))


@pytest.mark.parametrize("decoder", ["compiled", "eager"])
def test_a_model_that_drafts_for_itself_writes_what_it_writes_alone(decoder: str) -> None:
    target = HFBackend(random_model("qwen3"), device="cpu", dtype="float32", decoder=decoder)
    source = SelfDraftModelSource(target_backend=target, kv_mib=4, every=2, trials=5)
    plain, _ = write(target, None)
    texts, engine = write(target, source)
    assert [text.tokens for text in texts] == [text.tokens for text in plain]
    assert engine.stats.drafted > engine.stats.accepted > 0
    source.assert_invariants()


def test_without_a_model_in_this_process_there_is_no_part_of_it() -> None:
    with pytest.raises(ValueError, match="speculation=swift needs engine=local"):
        SelfDraftModelSource(target_backend=None)


def outcomes() -> st.SearchStrategy[tuple[Feedback, bool]]:
    @st.composite
    def build(draw: st.DrawFn) -> tuple[Feedback, bool]:
        size = draw(st.integers(0, 8))
        draft = Draft(tuple(range(10, 10 + size)), tuple(draw(st.integers(-1, node - 1)) for node in range(size)))
        path = draft.path_to(draw(st.integers(-1, size - 1)))
        rows = np.arange(3 * (1 + size)).reshape(1 + size, 3)
        branch = Branch(0, "", (7, 8, 9), 0, SamplingParams(), 9)
        outcome = Feedback(branch, draft, path, rows, -rows.astype(np.float32))
        return outcome, (path[-1] if path else -1) in draft.parents

    return build()


@given(outcomes())
def test_a_refusal_is_where_no_drafted_child_was_accepted(case: tuple[Feedback, bool]) -> None:
    outcome, is_refused = case
    refusal = find_refusal(outcome)
    assert (refusal is not None) == is_refused
    if refusal is not None:
        last = outcome.accepted_nodes[-1] if outcome.accepted_nodes else -1
        assert refusal.context == (7, 8, 9, *(10 + node for node in outcome.accepted_nodes))
        # row 0 is the last committed token, row 1 + i is node i
        assert refusal.ids.tolist() == [3 * (1 + last) + i for i in range(3)]


def learner(every: int = 4) -> tuple[DraftModel, OnlineDistillation, Any]:
    model = make_model(7).float()
    updater = OnlineDistillation(model, open_on_cpu, every=every, learning_rate=0.02)
    return DraftModel(open_on_cpu(model), kv_bytes=1 << 20, updater=updater), updater, model


def test_a_draft_model_that_learns_leaves_the_text_and_is_accepted_more() -> None:
    target = HFBackend(make_model(3).float(), device="cpu", dtype="float32")
    plain, _ = write(target, None, tokens=50)
    source, updater, _ = learner()
    texts, learned = write(target, source, tokens=50)
    assert [text.tokens for text in texts] == [text.tokens for text in plain]
    assert updater.num_steps == source.num_updates > 5
    source.assert_invariants()
    frozen = DraftModel(open_on_cpu(make_model(7).float()), kv_bytes=1 << 20)
    _, engine = write(target, frozen, tokens=50)
    assert learned.stats.accepted / learned.stats.drafted > engine.stats.accepted / engine.stats.drafted


def test_one_branch_at_a_time_gives_the_same_weights_for_the_same_seeds() -> None:
    target = HFBackend(make_model(3).float(), device="cpu", dtype="float32")

    def learn() -> list[torch.Tensor]:
        source, _, model = learner()
        write(target, source, tokens=30)
        return [parameter.detach() for parameter in model.parameters()]

    first, second, before = learn(), learn(), [parameter.detach() for parameter in learner()[2].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, before, strict=True))


def test_learning_lowers_the_loss_of_what_was_refused() -> None:
    """The loss is the cross entropy against the target's probabilities, by hand for one context."""
    _, updater, model = learner(every=3)
    branch = Branch(0, "", (1, 2, 3, 4), 0, SamplingParams(), 9)
    ids = np.array([[5, 6, 7], [8, 9, 10]])
    logprobs = np.log(np.array([[0.5, 0.3, 0.1], [0.2, 0.2, 0.2]], dtype=np.float32))
    outcome = Feedback(branch, Draft((11,), (-1,)), (), ids, logprobs)
    refusal = find_refusal(outcome)
    assert refusal is not None
    log_q = model(torch.tensor([branch.tokens[:]])).logits[0, -1].log_softmax(-1)
    by_hand = -(0.5 * log_q[5] + 0.3 * log_q[6] + 0.1 * log_q[7])
    before = updater.compute_loss([refusal])
    torch.testing.assert_close(before, by_hand, rtol=1e-4, atol=1e-5)
    assert updater.update_model([outcome, outcome]) is None
    assert updater.update_model([outcome]) is not None
    assert updater.compute_loss([refusal]).item() < before.item()


def test_a_shorter_context_in_a_step_is_read_as_if_alone() -> None:
    _, updater, _ = learner()
    long, short = (
        find_refusal(
            Feedback(
                Branch(0, "", tuple(range(1, 1 + length)), 0, SamplingParams(), 9), Draft((11,), (-1,)), (),
                np.array([[5], [6]]), np.array([[-0.5], [-1.0]], dtype=np.float32),
            )
        )
        for length in (12, 3)
    )  # fmt: skip
    assert long is not None
    assert short is not None
    together, alone = updater.compute_loss([long, short]), [updater.compute_loss([one]) for one in (long, short)]
    torch.testing.assert_close(together, sum(alone) / 2, rtol=1e-4, atol=1e-5)
