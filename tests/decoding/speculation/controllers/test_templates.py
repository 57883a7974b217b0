"""Controllers with a fixed number of nodes or a fixed tree shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decoding.core import Tokens
from decoding.speculation.controllers.chain import ChainController
from decoding.speculation.controllers.cost_curve import CalibratedCost
from decoding.speculation.controllers.fixed import FixedController
from decoding.speculation.controllers.goodput import GoodputController
from decoding.speculation.controllers.template import BUNDLED, TemplateController
from decoding.speculation.controllers.throughput import ThroughputController
from decoding.speculation.draft import TreeTemplate
from decoding.speculation.interfaces import Controller
from tests.support.simulated_machine import AMPLE, branches, name_of, spare


class TestTemplateController:
    @pytest.mark.parametrize(
        ("parents", "ranks", "message"),
        [
            ((0,), (0,), "node 0 of a template comes before its parent or its elder sibling"),
            ((-1, 2, 1), (0, 0, 0), "node 1 of a template comes before its parent"),
            ((-1, -2), (0, 0), "node 1 of a template comes before its parent"),
            ((-1, -1), (0, 2), "node 1 of a template comes before its parent or its elder sibling"),
            ((-1, 0), (0, 1), "node 1 of a template comes before its parent or its elder sibling"),
            ((-1, -1), (0, -1), "node 1 of a template comes before its parent or its elder sibling"),
            ((-1, 0, 0), (0, 0, 0), "node 2 of a template repeats child 0 of node 0"),
            ((-1, 0), (0,), "shorter"),
        ],
        ids=str,
    )
    def test_a_tree_that_is_none_is_refused(self, parents: Tokens, ranks: Tokens, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            TreeTemplate(parents, ranks)

    def test_every_beginning_is_a_template(self) -> None:
        whole = TreeTemplate((-1, -1, 0, 0, 1, 2, -1), (0, 1, 0, 1, 0, 0, 2))
        for n in range(len(whole) + 1):
            assert len(TreeTemplate(whole.parents[:n], whole.ranks[:n])) == n

    def test_a_chain(self) -> None:
        assert TreeTemplate.make_chain(0) == TreeTemplate((), ())
        assert TreeTemplate.make_chain(2) == TreeTemplate((-1, 0), (0, 0))


def written(folder: Path, text: str) -> str:
    file = folder / "tree.json"
    file.write_text(text, encoding="utf-8")
    return str(file)


class TestFromTemplate:
    def test_it_reads_a_file(self, tmp_path: Path) -> None:
        file = written(tmp_path, json.dumps({"parents": [-1, -1, 0], "ranks": [0, 1, 0], "accepted": 2.5}))
        controller = TemplateController(file)
        assert controller.template == TreeTemplate((-1, -1, 0), (0, 1, 0))
        assert controller.uses_template
        plan = controller.plan_drafts(branches(3), AMPLE)
        assert (plan.max_nodes, plan.max_total, plan.template) == ((3, 3, 3), 9, controller.template)

    @pytest.mark.parametrize(
        ("nodes", "rows", "each"), [(None, 99, 3), (2, 99, 2), (9, 99, 3), (3, 7, 2), (3, 2, 0), (0, 9, 0)]
    )
    def test_branches_get_the_same_best_nodes(self, tmp_path: Path, nodes: int | None, rows: int, each: int) -> None:
        file = written(tmp_path, json.dumps({"parents": [-1, -1, 0], "ranks": [0, 1, 0]}))
        plan = TemplateController(file, nodes).plan_drafts(branches(3), spare(rows))
        assert (plan.max_nodes, plan.max_total) == ((each,) * 3, 3 * each)

    def test_a_missing_file_is_named_with_what_there_is(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"file must be .* stand, token_recycling; there is no /no/such\.json"):
            TemplateController("/no/such.json")
        with pytest.raises(ValueError, match="there is no stond"):
            TemplateController("stond")
        with pytest.raises(ValueError, match="there is no"):
            TemplateController(str(tmp_path))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "3",
            "null",
            '{"parents": [-1]}',
            '{"parents": 3, "ranks": [0]}',
            '{"parents": [-1], "ranks": [0, 1]}',
            '{"parents": [0], "ranks": [0]}',
            '{"parents": ["x"], "ranks": [0]}',
            '{"parents": [null], "ranks": [0]}',
        ],
    )
    def test_a_broken_file_is_named(self, tmp_path: Path, text: str) -> None:
        file = written(tmp_path, text)
        with pytest.raises(ValueError, match=r"^file=.*tree\.json is no tree template"):
            TemplateController(file)

    def test_a_file_that_is_no_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "tree.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=r"^file=.*tree\.json is no tree template"):
            TemplateController(str(tmp_path / "tree.json"))

    @pytest.mark.parametrize("name", BUNDLED)
    def test_those_that_ship_are_trees_in_order_of_worth(self, name: str) -> None:
        template = TemplateController(name).template
        assert 10 <= len(template) <= 200
        assert template.parents[0] == -1
        assert TemplateController(name, nodes=5).plan_drafts(branches(1), AMPLE).max_nodes == (5,)

    def test_a_wrong_number_of_nodes_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="nodes must be an int >= 0 or null, got -1"):
            TemplateController("token_recycling", -1)


class TestFixedNumbers:
    def test_every_branch_gets_the_same_chain(self) -> None:
        plan = ChainController(4).plan_drafts(branches(3), AMPLE)
        assert (plan.max_nodes, plan.max_total, plan.template) == ((4, 4, 4), 12, TreeTemplate.make_chain(4))
        assert ChainController(4).plan_drafts(branches(3), spare(8)).max_nodes == (2, 2, 2)
        assert (
            ChainController(0).plan_drafts(branches(3), AMPLE).max_total
            == ChainController(4).plan_drafts(branches(3), spare(2)).max_total
            == 0
        )
        assert ChainController.uses_template

    def test_a_fixed_number_goes_wherever_acceptance_is_likeliest(self) -> None:
        plan = FixedController(4).plan_drafts(branches(3), AMPLE)
        assert (plan.max_total, plan.template, plan.cost_estimate) == (12, None, None)
        assert min(plan.max_nodes) == 12
        assert FixedController(4).plan_drafts(branches(3), spare(8)).max_total == 8
        assert FixedController(0).plan_drafts(branches(3), AMPLE).max_total == 0
        assert not FixedController.uses_template

    @pytest.mark.parametrize(
        "controller",
        [ChainController(4), FixedController(4), ThroughputController(), GoodputController()],
        ids=lambda c: type(c).__name__,
    )
    def test_no_branches_give_an_empty_plan(self, controller: Controller) -> None:
        assert controller.plan_drafts([], AMPLE).max_nodes == ()
        controller.observe([], None)

    @pytest.mark.parametrize("controller", [ChainController(4), FixedController(4)], ids=name_of)
    def test_they_have_no_cost_curve(self, controller: Controller) -> None:
        assert not isinstance(controller, CalibratedCost)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: ChainController(-1), "length must be an int >= 0, got -1"),
            (lambda: FixedController(True), "nodes must be an int >= 0, got True"),
            (lambda: ThroughputController(2.5), "max_draft_tokens must be an int >= 0, got 2.5"),  # type: ignore[arg-type]
            (lambda: GoodputController(longest=-2), "longest must be an int >= 0, got -2"),
            (lambda: GoodputController(first=1.0), r"first must be in \(0, 1\), got 1.0"),
            (lambda: GoodputController(width=0), "width must be an int >= 1, got 0"),
            (lambda: GoodputController(trial=-1), "trial must be an int >= 0, got -1"),
            (lambda: GoodputController(smoothing=0), r"smoothing must be in \(0, 1\), got 0"),
        ],
    )
    def test_nonsense_is_refused_by_name(self, make: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make()
