"""The chi-square check of acceptance rules passes correct ones and catches biased ones."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from decoding.core import SamplingParams
from decoding.round import Speculation
from decoding.speculation.acceptance.uniform_stream import UniformStream
from decoding.speculation.acceptance.verify import P, TreeRule, children_of
from decoding.speculation.draft import Draft, DraftSampling, VerifiedPath
from decoding.speculation.interfaces import AcceptanceRule
from reason.bench.acceptance_fit import (
    SAMPLING,
    AcceptanceFit,
    find_misfits,
    fit_counts,
    make_rules,
    make_speculations,
    measure_fits,
)
from reason.bench.tiny_target import NUM_POSITIONS, PROMPT, VOCABULARY_SIZE, TinyTarget
from tests.support.enumeration import filtered_distribution
from tests.support.paths import SCRIPTS


@dataclass(frozen=True)
class AcceptAlways(TreeRule):
    """Accepts the first child of every node, and says that it is lossless."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("without_replacement",)

    def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        def choose_token(node: int) -> int:
            drafted = children_of(draft, node)
            return drafted.children[0].token if drafted.children else stream.sample_index(p(node))

        return draft.follow_path(choose_token)


@dataclass(frozen=True)
class ForgetfulRejection(TreeRule):
    """Tries one child as it should, and after a rejection samples from p where it should sample from the residual."""

    supported_sampling: ClassVar[tuple[DraftSampling, ...]] = ("without_replacement",)

    def verify_tree(self, draft: Draft, p: P, stream: UniformStream) -> VerifiedPath:
        def choose_token(node: int) -> int:
            drafted = children_of(draft, node)
            for _, token, at in drafted.children[:1]:
                if stream.accept_ratio(p(node)[token], drafted.q_K[at]):
                    return token
            return stream.sample_index(p(node))

        return draft.follow_path(choose_token)


@pytest.fixture(scope="module")
def target() -> TinyTarget:
    return TinyTarget(1)


def measure_rule(target: TinyTarget, rule: AcceptanceRule, draws: int) -> list[AcceptanceFit]:
    """With drafts that are often wrong: a draft model like the target is nearly right even if always accepted."""
    speculations = dict(make_speculations(rule, target))
    name = "suffix, without_replacement"
    return measure_fits(target, speculations[name], rule="this", drafter=name, draws=draws, seed=1)


def test_rule_that_always_accepts_is_caught_by_few_texts(target: TinyTarget) -> None:
    fits = measure_rule(target, AcceptAlways(), draws=150)
    assert find_misfits(fits) == fits
    assert all(fit.accepted for fit in fits)


def test_rule_that_forgets_the_residual_is_caught(target: TinyTarget) -> None:
    assert find_misfits(measure_rule(target, ForgetfulRejection(), draws=600))


@pytest.mark.parametrize("name", ["recursive_rejection", "traversal"])
def test_correct_rule_fits(target: TinyTarget, name: str) -> None:
    (rule,) = make_rules([name]).values()
    fits = measure_rule(target, rule, draws=300)
    assert not find_misfits(fits)
    assert [fit.sampling for fit in fits] == list(SAMPLING)
    assert all(0.1 * fit.drafted < fit.accepted < 0.9 * fit.drafted for fit in fits)


def test_plain_decoding_fits_and_drafts_nothing(target: TinyTarget) -> None:
    fits = measure_fits(target, Speculation(), rule="coupled", drafter="off", draws=300, seed=1)
    assert not find_misfits(fits)
    assert not any(fit.drafted for fit in fits)


def test_all_lossless_rules_are_checked_with_all_their_draws(target: TinyTarget) -> None:
    rules = make_rules()
    assert "greedy_match" not in rules
    assert len(rules) == 6
    for rule in rules.values():
        names = [name for name, _ in make_speculations(rule, target)]
        assert {name.split(", ")[1] for name in names} >= set(rule.supported_sampling)
        assert {name.split(", ")[0] for name in names} >= {"stand", "suffix", "draft_model"}


@pytest.mark.parametrize("params", SAMPLING.values(), ids=list(SAMPLING))
def test_exact_distributions_are_those_of_the_engines_model_and_filters(
    target: TinyTarget, params: SamplingParams
) -> None:
    """The first token by the slow filters of the tests; the second by a sum over the first."""
    exact = target.position_distributions(params)
    assert len(exact) == NUM_POSITIONS
    np.testing.assert_allclose([row.sum() for row in exact], 1)
    rows = [next_logits(target, ()), *(next_logits(target, (token,)) for token in range(VOCABULARY_SIZE))]
    first, *after = [filtered_distribution(row, params) for row in rows]
    np.testing.assert_allclose(exact[0], first, atol=1e-9)
    np.testing.assert_allclose(exact[1], first @ np.array(after), atol=1e-9)


def next_logits(target: TinyTarget, text: tuple[int, ...]) -> np.ndarray:
    with torch.inference_mode():
        logits: np.ndarray = target.model(torch.tensor([[*PROMPT, *text]])).logits[0, -1].numpy()
    return logits


def test_p_values_of_true_samples_are_uniform() -> None:
    """Also where most tokens are rare and counted together."""
    rng = np.random.default_rng(0)
    exact = np.array([0.4, 0.3, 0.2, 0.05, 0.02, 0.01, 0.01, 0.005, 0.005, 0.0])
    p_values = np.array([fit_counts(rng.multinomial(400, exact), exact).p_value for _ in range(2000)])
    for level in (0.05, 0.5):
        assert (p_values < level).mean() == pytest.approx(level, abs=0.2 * level)


def test_certain_token_has_nothing_to_test() -> None:
    fit = fit_counts(np.array([0, 30]), np.array([0.0, 1.0]))
    assert (fit.chi2, fit.dof, fit.p_value) == (0, 0, 1)


def test_script_exits_with_one_where_a_rule_misfits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("check_acceptance", SCRIPTS / "dev" / "check_acceptance.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for rules, status, last in (
        ("greedy_match", 1, "36 cases: 36 misfit, 0 accepted no draft token"),
        ("k_sequential", 0, "12 cases: 0 misfit, 0 accepted no draft token"),
    ):
        monkeypatch.setattr(sys, "argv", ["check_acceptance.py", "--rules", rules, "--draws", "40"])
        with pytest.raises(SystemExit) as ended:
            script.main()
        assert ended.value.code == status
        assert capsys.readouterr().out.splitlines()[-1] == last
    monkeypatch.setattr(sys, "argv", ["check_acceptance.py", "--rules", "greedy"])
    with pytest.raises(SystemExit, match="greedy_match"):
        script.main()
