"""A drafter, a drafter with a model and an acceptance rule take two files each: a module and a yaml."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from reason.build import load
from reason.config.errors import ConfigError
from reason.problem import Solution

QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
SMALL = ("search=self_consistency", "search.n=2", "scorer=none", "engine.dtype=float64", "engine.device=cpu")

REPEAT_SOURCE = '''
import numpy as np

from decoding.speculation.drafters.source import NextTokens


class RepeatToken:
    """Proposes the last token again."""

    feedback_k = 0
    has_probabilities = False

    def root_states(self, branches):
        return np.array([branch.tokens[-1] for branch in branches], dtype=np.int64)

    def next_tokens(self, state):
        scores_FK = np.zeros((len(state), 1), dtype=np.float32)
        return NextTokens(state[:, None], scores_FK, np.zeros(len(state), dtype=np.int64))

    def advance(self, state, tokens_F):
        return tokens_F

    def observe(self, feedback):
        pass
'''

MODEL_SOURCE = '''
from reason.engines.draft_model import DraftModelSource


class NarrowDraftModel(DraftModelSource):
    """A draft model with two candidates per token; `needs_model` is inherited."""

    def __init__(self, path, *, target_tokenizer=None, target_path=""):
        assert target_tokenizer is not None and target_path
        super().__init__(path, target_tokenizer=target_tokenizer, target_path=target_path, device="cpu", k=2)
'''

OWN_DRAFTER = '''
from decoding.speculation.draft import Draft


class RepeatDrafter:
    """A drafter without a source: the last token, as often as the plan allows."""

    feedback_k = 0

    def propose(self, branches, plan):
        lengths = [min(nodes, 3) for nodes in plan.max_nodes]
        return [Draft((b.tokens[-1],) * n, tuple(range(-1, n - 1))) for b, n in zip(branches, lengths)]

    def observe(self, feedback):
        pass
'''

RULE = '''
from dataclasses import dataclass
from typing import ClassVar

from decoding.speculation.draft import VerifyResult


@dataclass(frozen=True)
class RejectAll:
    """Accepts nothing, and takes the most likely token: greedy decoding at every temperature."""

    lossless: ClassVar[bool] = False
    supported_sampling: ClassVar[tuple[str, ...]] = ("likely", "coupled")

    def verify_drafts(self, branches, drafts, target):
        best_W, raw_WV = target.logits_WV.argmax(-1).tolist(), target.raw_log_p
        return [VerifyResult((), (best_W[row],), (float(raw_WV[row, best_W[row]]),)) for row in target.first_rows]
'''


@pytest.fixture
def loaded_plugins() -> Iterator[None]:
    """Forgets plug-in modules afterwards."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("plug_in_"):
            del sys.modules[name]


def write_plug_in(folder: Path, group: str, name: str, source: str, yaml: str) -> tuple[str, ...]:
    """Writes the two files; returns the settings that select them."""
    module = folder / f"plug_in_{name}.py"
    module.write_text(source)
    (folder / "conf" / group).mkdir(parents=True)
    (folder / "conf" / group / f"{name}.yaml").write_text(dedent(yaml))
    return f"hydra.searchpath=[file://{folder / 'conf'}]", f"plugins=[{module}]", f"{group}={name}"


def solve_with(*settings: str) -> Solution:
    with load(*SMALL, *settings) as solver:
        return solver.solve(QUESTION)


def output_of(solution: Solution) -> tuple[str, int]:
    return solution.text, solution.usage.tokens


@pytest.mark.usefixtures("loaded_plugins")
@pytest.mark.parametrize(
    ("name", "source", "yaml"),
    [
        (
            "repeat_token",
            REPEAT_SOURCE,
            """
            _target_: decoding.speculation.drafters.tree_drafter.TreeDrafter
            draw: null
            width: 1
            depth: 4
            source:
              _target_: plug_in_repeat_token.RepeatToken
            """,
        ),
        (
            "narrow_model",
            MODEL_SOURCE,
            """
            _target_: decoding.speculation.drafters.tree_drafter.TreeDrafter
            draw: null
            width: 2
            depth: 4
            source:
              _target_: plug_in_narrow_model.NarrowDraftModel
              path: bundled:draft
            """,
        ),
        ("repeat_drafter", OWN_DRAFTER, "_target_: plug_in_repeat_drafter.RepeatDrafter"),
    ],
)
def test_a_drafter_is_a_module_and_a_yaml(name: str, source: str, yaml: str, tmp_path: Path) -> None:
    settings = write_plug_in(tmp_path, "speculation", name, source, yaml)
    solution = solve_with(*settings, "controller=fixed")
    assert solution.usage.drafted > 0
    assert output_of(solution) == output_of(solve_with("speculation=off"))


@pytest.mark.usefixtures("loaded_plugins")
def test_an_acceptance_rule_is_a_module_and_a_yaml_and_is_named_where_lossy(tmp_path: Path) -> None:
    settings = write_plug_in(tmp_path, "acceptance", "reject_all", RULE, "_target_: plug_in_reject_all.RejectAll")
    with load(*SMALL, *settings, "speculation=prompt_lookup", "controller=fixed") as solver:
        solution = solver.solve(QUESTION)
    assert solution.usage.drafted > solution.usage.accepted == 0
    greedy = solve_with("speculation=off", "search.sampling.temperature=0")
    assert output_of(solution) == output_of(greedy)
    with pytest.raises(ConfigError, match="acceptance=reject_all needs draw=likely or coupled, got draw=iid"):
        load(*SMALL, *settings, "speculation=stand", "speculation.draw=iid")
