"""Compares the tokens of speculative decoding with the model's exact distribution, as a lossless rule promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.stats

from decoding.core import Generation, GenerationRequest, SamplingParams
from decoding.engine import LocalEngine
from decoding.round import Speculation
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.template import TemplateController
from decoding.speculation.drafters.draft_model import DraftModel
from decoding.speculation.drafters.source import DraftSource
from decoding.speculation.drafters.stand import Stand
from decoding.speculation.drafters.suffix import SuffixDecoding
from decoding.speculation.drafters.token_recycling import TokenRecycling
from decoding.speculation.drafters.tree_drafter import TreeDrafter
from decoding.speculation.interfaces import AcceptanceRule
from reason.bench.tiny_target import NUM_POSITIONS, PROMPT, VOCABULARY_SIZE, Floats, TinyTarget
from reason.config.compose import instantiate, list_options, load_option

Ints = npt.NDArray[np.int64]

SAMPLING: Mapping[str, SamplingParams] = {
    "temperature=1": SamplingParams(temperature=1.0),
    "temperature=0.7 top_k=6": SamplingParams(temperature=0.7, top_k=6),
    "temperature=1.3 top_p=0.8": SamplingParams(temperature=1.3, top_p=0.8),
    "temperature=1 min_p=0.1": SamplingParams(temperature=1.0, min_p=0.1),
}
MIN_EXPECTED = 5.0
"""Tokens that are expected less often are counted together, as usual for the chi-square test."""
FAMILY_ERROR = 0.01
"""Chance that a run over correct rules reports a misfit."""


@dataclass(frozen=True)
class PositionFit:
    """The chi-square test of the tokens at one position; `dof` is 0 where all are counted together."""

    chi2: float
    dof: int
    p_value: float


@dataclass(frozen=True)
class AcceptanceFit:
    """The fit of `draws` texts of one rule, drafter and sampling setting, with their numbers of draft tokens."""

    rule: str
    drafter: str
    sampling: str
    draws: int
    drafted: int
    accepted: int
    positions: tuple[PositionFit, ...]

    @property
    def p_value(self) -> float:
        """The smallest p-value of its positions."""
        return min(position.p_value for position in self.positions)


def make_rules(names: Sequence[str] | None = None) -> dict[str, AcceptanceRule]:
    """Returns rules by the names of their options; all that claim to be lossless by default. Raises: ConfigError."""
    options = list_options("acceptance") if names is None else names
    rules: dict[str, AcceptanceRule] = {
        name: instantiate("acceptance", load_option("acceptance", name)) for name in options
    }
    return {name: rule for name, rule in rules.items() if names is not None or rule.lossless}


def make_speculations(rule: AcceptanceRule, target: TinyTarget) -> Iterator[tuple[str, Speculation]]:
    """Yields the rule with every kind of drafter, and with every kind of draws that it supports, by name."""
    sources: dict[str, Callable[[], DraftSource]] = {
        "stand": Stand,
        "suffix": SuffixDecoding,
        "draft_model": lambda: DraftModel(target.draft_backend, kv_bytes=1 << 22),
        "token_recycling": TokenRecycling,
    }
    for name, make_source in sources.items():
        draws = [draw for draw in rule.supported_sampling if draw == "likely" or make_source().has_probabilities]
        # one drafter has all kinds of draws; the others have the first, which is chosen for them in use
        for draw in draws if name == "stand" else draws[:1]:
            # the fixed controller selects nodes by their probability, which independent and ordered draws do not permit
            fixed, template = FixedController(8), TemplateController("token_recycling", nodes=14)
            controller = template if draw in ("without_replacement", "iid") else fixed
            yield f"{name}, {draw}", Speculation(TreeDrafter(make_source(), draw), controller, rule)


def measure_fits(
    target: TinyTarget, speculation: Speculation, *, rule: str, drafter: str, draws: int, seed: int
) -> list[AcceptanceFit]:
    """Returns the fit of `draws` texts for each sampling setting; their texts share batches, as those of users do."""
    requests = [
        GenerationRequest(
            prefix=PROMPT,
            # one token more than is compared: a draft ends before the last
            params=replace(params, max_tokens=NUM_POSITIONS + 1),
            seed=(seed << 40) + len(SAMPLING) * i + j,
            group="texts",
        )
        for i in range(draws)
        for j, params in enumerate(SAMPLING.values())
    ]
    engine = LocalEngine(target.backend, decode=str, kv_bytes=1 << 22, speculation=speculation)
    try:
        generations = asyncio.run(engine.generate(requests))
    finally:
        engine.close()
    return [
        AcceptanceFit(
            rule,
            drafter,
            sampling,
            draws=draws,
            drafted=sum(generation.usage.drafted for generation in texts),
            accepted=sum(generation.usage.accepted for generation in texts),
            positions=fit_positions(texts, target.position_distributions(params)),
        )
        for j, (sampling, params) in enumerate(SAMPLING.items())
        for texts in [generations[j :: len(SAMPLING)]]
    ]


def fit_positions(texts: Sequence[Generation], exact: Sequence[Floats]) -> tuple[PositionFit, ...]:
    """Returns the fit of the tokens at each position."""
    columns = np.array([generation.tokens[: len(exact)] for generation in texts]).T
    return tuple(
        fit_counts(np.bincount(tokens, minlength=VOCABULARY_SIZE), exact_V)
        for tokens, exact_V in zip(columns, exact, strict=True)
    )


def fit_counts(counts_V: Ints, exact_V: Floats) -> PositionFit:
    """Returns the chi-square test of counts against probabilities. A token with probability 0 makes the p-value 0.

    >>> fit_counts(np.array([50, 48, 1, 1]), np.array([0.5, 0.49, 0.01, 0.0])).p_value
    0.0
    >>> fit = fit_counts(np.array([50, 47, 2, 1]), np.array([0.5, 0.46, 0.02, 0.02]))  # the last two together: 4 < 5
    >>> fit.dof, round(fit.p_value, 2)
    (1, 1.0)
    """
    if counts_V[exact_V == 0].any():
        return PositionFit(float("inf"), 0, 0.0)
    order = np.argsort(exact_V)
    observed, expected = counts_V[order].astype(np.float64), exact_V[order] * counts_V.sum()
    # the rare tokens, and as many more as their sum needs
    num_merged = max(int((expected < MIN_EXPECTED).sum()), int((expected.cumsum() < MIN_EXPECTED).sum()) + 1)
    first = np.arange(num_merged - 1, len(expected))
    observed[num_merged - 1], expected[num_merged - 1] = observed[:num_merged].sum(), expected[:num_merged].sum()
    if len(first) == 1:
        return PositionFit(0.0, 0, 1.0)
    # the sums of both must be equal to more digits than the model computes
    chi2, p_value = scipy.stats.chisquare(observed[first], expected[first] * (counts_V.sum() / expected[first].sum()))
    return PositionFit(float(chi2), len(first) - 1, float(p_value))


def find_misfits(fits: Sequence[AcceptanceFit]) -> list[AcceptanceFit]:
    """Returns the fits with a p-value below `FAMILY_ERROR` over the number of all p-values (Bonferroni)."""
    limit = FAMILY_ERROR / max(1, sum(len(fit.positions) for fit in fits))
    return [fit for fit in fits if fit.p_value < limit]
