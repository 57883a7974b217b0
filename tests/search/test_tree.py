"""Saved search trees, also those of earlier versions."""

from __future__ import annotations

from search.tree import SearchTree, Step


def test_routed_step_is_saved_with_its_model_and_read_under_its_former_names() -> None:
    tree = SearchTree((1, 2))
    first = tree.add_node(tree.ROOT, Step((3, 4), "x", (-0.5, -0.25), model="target", routing_score=0.75), score=0.5)
    tree.add_node(first, Step((5,), "y"), finish="eos")
    saved = tree.to_dict()
    routed, plain = saved["nodes"]
    assert (routed["model"], routed["routing_score"]) == ("target", 0.75)
    assert "model" not in plain
    names = {"model": "author", "routing_score": "route"}
    former = [{names.get(key, key): value for key, value in node.items()} for node in saved["nodes"]]
    for data in (saved, {"root": [1, 2], "nodes": former}):
        read = SearchTree.from_dict(data)
        assert read.to_dict() == saved
        assert read.nodes == tree.nodes
