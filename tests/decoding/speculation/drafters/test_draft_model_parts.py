"""Draft models with a part of the vocabulary, with a part of the layers, that stop by a head, and that change."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from decoding.core import SamplingParams, Tokens
from decoding.kv.sequence import TokenSequence
from decoding.model.batch import SequenceInput, pack_inputs
from decoding.model.transformers_checkpoint import HFBackend
from decoding.speculation.acceptance.uniform_stream import UniformStream
from decoding.speculation.acceptance.verify import TreeRule
from decoding.speculation.draft import Draft, DraftSampling
from decoding.speculation.drafters.acceptance_head import AcceptanceHead
from decoding.speculation.drafters.draft_model import DraftModel, RefusalLimit
from decoding.speculation.drafters.source import Floats, Ints
from decoding.speculation.interfaces import Branch, Feedback
from tests.support.acceptance_rules import SAMPLING, id_of
from tests.support.enumeration import Instance, draw_tree, enumerate_drafts
from tests.support.fakes import HashBackend
from tests.support.random_models import random_model

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
PAIRS = [(rule, kind) for rule in SAMPLING for kind in rule.supported_sampling if kind != "coupled"]


def branch(tokens: Tokens = PROMPT, request_id: int = 0) -> Branch:
    return Branch(request_id, "", tokens, 0, SamplingParams(), 99)


def open_backend(model: Any, **options: Any) -> HFBackend:
    return HFBackend(model, device="cpu", dtype="float32", **options)


def run_backend(backend: HFBackend, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns hidden states and logits after every token."""
    sequence = TokenSequence(0, tokens)
    feed = SequenceInput(sequence, len(tokens), np.arange(1, len(tokens) + 1), 0)
    batch, _ = pack_inputs([feed], backend)
    hidden = backend.forward(batch, backend.new_kv_pool(len(tokens)))
    return hidden, backend.apply_head(hidden)


def draft_chain(source: DraftModel, length: int, tokens: Tokens = PROMPT) -> list[tuple[int, Ints, Floats]]:
    """Walks the likeliest chain; returns, by level, the token walked to and the candidates after it."""
    state, token, levels = source.root_states([branch(tokens)]), -1, []
    for _ in range(length):
        candidates = source.next_tokens(state)
        levels.append((token, candidates.ids_FK[0], candidates.logp_FK[0]))
        token = int(candidates.ids_FK[0, 0])
        if token < 0:
            break
        state = source.advance(state, np.array([token]))
    return levels


@pytest.mark.parametrize("decoder", ["compiled", "eager"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_trimmed_head_drafts_from_the_full_distribution_given_its_ids(family: str, decoder: str) -> None:
    model = random_model(family)
    ids = [5, 96, 11, 40, 0, 73]
    trimmed = DraftModel(
        open_backend(model, decoder=decoder, head_ids=ids), k=4, kv_bytes=1 << 20, head_ids=np.array(ids)
    )
    full = DraftModel(open_backend(model, decoder=decoder), k=97, kv_bytes=1 << 20)
    ((_, drafted, logp),) = draft_chain(trimmed, 1)
    ((_, all_ids, all_logp),) = draft_chain(full, 1)
    log_q = dict(zip(all_ids.tolist(), all_logp.tolist(), strict=True))
    mass = np.logaddexp.reduce([log_q[i] for i in ids])
    best = sorted(ids, key=lambda i: -log_q[i])[:4]
    assert drafted.tolist() == best
    np.testing.assert_allclose(logp, [log_q[i] - mass for i in best], atol=1e-4)


@pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=id_of)
def test_drafts_from_a_part_of_the_vocabulary_leave_the_law_of_the_target(rule: TreeRule, kind: DraftSampling) -> None:
    """By enumeration: one id that the target may emit has no probability in q."""
    number = float if id_of(rule) == "KSequential" else Fraction
    for seed in range(3):
        instance = Instance.random(seed, number=number)
        for context, row in instance.q.items():
            row[seed % 3] = 0
            instance.q[context] = row / row.sum()

        def draw_draft(stream: UniformStream, instance: Instance = instance) -> Draft:
            return draw_tree(kind, (2, 1), instance.q, stream)

        report = enumerate_drafts(instance, draw_draft, rule.verify_tree)
        assert report.distance <= (1e-12 if number is float else 0)


@pytest.mark.parametrize("decoder", ["compiled", "eager"])
@pytest.mark.parametrize(("family", "layers"), [("qwen3", [0, 2]), ("llama", [1]), ("qwen2", [0, 1, 2])])
def test_a_view_of_layers_equals_the_model_without_the_others(family: str, layers: list[int], decoder: str) -> None:
    model = random_model(family)
    shorter = copy.deepcopy(model)
    shorter.model.layers = torch.nn.ModuleList(shorter.model.layers[i] for i in layers)
    shorter.config.num_hidden_layers = len(layers)
    whole = open_backend(model, decoder=decoder)
    expected_whole = run_backend(whole, PROMPT)[1]
    view = whole.view_layers(layers)
    torch.testing.assert_close(
        run_backend(view, PROMPT)[1], run_backend(open_backend(shorter, decoder=decoder), PROMPT)[1]
    )
    assert view.kv_bytes_per_token * whole.num_layers == whole.kv_bytes_per_token * len(layers)
    # the model itself is as it was
    torch.testing.assert_close(run_backend(whole, PROMPT)[1], expected_whole, rtol=0, atol=0)


@pytest.mark.parametrize("layers", [[], [3], [-1]])
def test_a_view_of_layers_that_are_not_there_is_refused(layers: list[int]) -> None:
    with pytest.raises(ValueError, match="layers must be some of the 3"):
        open_backend(random_model("llama")).view_layers(layers)


def random_head(size: int, *, shift: float = 2.0) -> AcceptanceHead:
    noise = torch.Generator().manual_seed(4)
    blocks = [(torch.randn(size, size, generator=noise) / 6, torch.randn(size, generator=noise)) for _ in range(2)]
    return AcceptanceHead(blocks, (0.05 * torch.randn(size, generator=noise), torch.tensor([shift])))


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9, 1.0])
def test_a_draft_ends_where_a_refusal_on_its_path_is_likely(threshold: float) -> None:
    """SpecDec++: the chain goes on while 1 - prod P(accepted) is at most the threshold."""
    model, head = random_model("qwen3"), random_head(32)
    backend = open_backend(model)
    free = draft_chain(DraftModel(backend, kv_bytes=1 << 20), 8)
    chain = [token for token, _, _ in free][1:]
    hidden, _ = run_backend(backend, (*PROMPT, *chain))
    accepted = head.predict_logits(hidden[len(PROMPT) :]).sigmoid().cumprod(0).numpy()
    lasts = 1 + int(np.argmax(1 - accepted > threshold)) if (1 - accepted > threshold).any() else 8
    source = DraftModel(backend, kv_bytes=1 << 20, stop_rule=RefusalLimit(head, threshold))
    levels = draft_chain(source, 8)
    # neither at once nor never, so that the product matters
    assert threshold == 1 or 1 < lasts < 8 or threshold == 0.9
    assert len([ids for _, ids, _ in levels if ids[0] >= 0]) == lasts
    for (_, ids, _), (_, free_ids, _) in zip(levels, free, strict=False):
        assert ids[0] < 0 or ids.tolist() == free_ids.tolist()
    # an accepted node below which the draft ended is a root like any other
    grown = (*PROMPT, *chain[:lasts]) if lasts < 8 else (*PROMPT, *chain)
    assert draft_chain(source, 1, grown)[0][1][0] >= 0
    # nor are the roots of another round any node of the last one
    draft_chain(source, 8)
    state = source.root_states([branch((*PROMPT, i), i) for i in range(9)])
    assert (source.next_tokens(state).ids_FK[:, 0] >= 0).all()
    source.assert_invariants()


class SwapOnce:
    """An updater that gives another model after the second outcome."""

    feedback_k = 3

    def __init__(self, after: HashBackend) -> None:
        self.after, self.count = after, 0

    def update_model(self, feedback: Sequence[Feedback]) -> HashBackend | None:
        self.count += 1
        return self.after if self.count == 2 else None


def test_what_the_old_model_computed_is_computed_anew_with_the_new_one() -> None:
    source = DraftModel(HashBackend(), kv_bytes=4000, updater=SwapOnce(HashBackend(scale=0.5)))
    assert source.feedback_k == 3
    before = draft_chain(source, 3)
    source.observe([])
    assert source.num_updates == 0
    assert [level[2].tolist() for level in draft_chain(source, 3)] == [level[2].tolist() for level in before]
    source.observe([])
    assert source.num_updates == 1
    fresh = DraftModel(HashBackend(scale=0.5), kv_bytes=4000)
    for (_, ids, logp), (_, fresh_ids, fresh_logp) in zip(draft_chain(source, 3), draft_chain(fresh, 3), strict=True):
        assert ids.tolist() == fresh_ids.tolist()
        assert logp.tolist() == fresh_logp.tolist()
    source.assert_invariants()
