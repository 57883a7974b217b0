"""ETS as a search: its KV, its widths, its clusters and its costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from search.strategies.ets import Ets
from search.strategies.rebase import Rebase
from search.strategy import SearchResult
from tests.support.toy_search import ToyEngine, run_search, write_five_steps


class TestEts:
    def test_kept_kv_is_less_than_that_of_rebase_at_the_same_width(self) -> None:
        mean = {}
        for name, strategy in {"ets": Ets(n=32), "rebase": Rebase(n=32)}.items():
            result = run_search(strategy, engine=ToyEngine(write_five_steps))
            mean[name] = np.mean([selection.kept_tokens for selection in result.selections])
        assert mean["ets"] < mean["rebase"]

    def test_whole_width_goes_to_kept_branches(self) -> None:
        for decision in run_search(Ets(n=16), engine=ToyEngine(write_five_steps)).selections:
            assert sum(decision.widths) == 16
            assert set(decision.reasons.values()) <= {"score", "redundancy", "cost"}
            assert set(decision.reasons) == {
                node for node, width in zip(decision.nodes, decision.widths, strict=True) if not width
            }

    def test_cover_first_gives_every_covered_cluster_a_continuation(self) -> None:
        first = run_search(Ets(n=16, cover_first=True), engine=ToyEngine(write_five_steps)).selections[0]
        texts = self.kinds(run_search(Ets(n=16), engine=ToyEngine(write_five_steps)), first.nodes)
        alive = {texts[node] for node, width in zip(first.nodes, first.widths, strict=True) if width}
        assert len(alive) == first.note["covered"]

    @staticmethod
    def kinds(result: SearchResult, nodes: Sequence[int]) -> dict[int, str]:
        return {node: result.tree.nodes[node].step.text.strip()[-2] for node in nodes}

    def test_node_cost_may_be_tokens(self) -> None:
        by_tokens = run_search(Ets(n=16, cost="tokens"), engine=ToyEngine(write_five_steps))
        assert by_tokens.best is not None

    def test_embedder_is_needed_with_coverage_only(self) -> None:
        assert not Ets(coverage=0).needs_embedder
        assert run_search(Ets(n=8, coverage=0), embedder=None).best is not None
        with pytest.raises(ValueError, match="was given no embedder"):
            run_search(Ets(n=8), embedder=None, engine=ToyEngine(write_five_steps))

    @pytest.mark.parametrize(("penalty", "warns"), [(1e-6, True), (3.25, False)])
    def test_program_that_prunes_nothing_is_warned_of_once(
        self, penalty: float, warns: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            run_search(Ets(n=8, coverage=0, penalty=penalty, temperature=5.0), engine=ToyEngine(write_five_steps))
        assert caplog.text.count("its program prunes nothing") == warns

    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"penalty": -1}, "penalty must be a number >= 0, got -1"),
            ({"coverage": "much"}, "coverage must be a number >= 0, got 'much'"),
            ({"cost": "bytes"}, "cost must be one of nodes, tokens; got 'bytes'"),
            ({"cover_first": 1}, "cover_first must be true or false, got 1"),
            ({"solver_seconds": 0}, "solver_seconds must be a number > 0, got 0"),
        ],
    )
    def test_wrong_knobs_are_refused_by_name(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Ets(**knobs)
