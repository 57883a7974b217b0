"""Makes the record of a large search, to measure its page."""

from __future__ import annotations

import random

from reason.runs.pages.records import TreeRecord
from search.tree import SearchTree, Step


def make_tree(num_steps: int, *, width: int = 64, seed: int = 0) -> TreeRecord:
    """Returns the record of a search that went on with `width` branches of each level, as plain data."""
    chance = random.Random(seed)
    tree = SearchTree(tuple(range(40)))
    level, finished = [SearchTree.ROOT], list[int]()
    while len(tree) < num_steps:
        below = []
        for number in range(min(width, num_steps - len(tree))):
            parent = level[number % len(level)]
            kind = chance.choice(["even", "odd", "prime"])
            text = f"Then ${len(tree)}$ is {kind}, and so x_{number} = {chance.randrange(1000)} modulo 19.\n\n"
            below.append(tree.add_node(parent, Step((1,) * 20, text, (-0.3,) * 20), score=chance.random()))
        level = chance.choices(below, k=max(1, len(below) // 2))
        if len(tree) % (16 * width) < width:
            finished.append(below[0])
    finished.append(len(tree) - 1)
    for node in finished:
        tree.nodes[node].finish = "eos"
    best = max(finished, key=lambda node: tree.nodes[node].score or 0)
    answers = {node: str(node % 5) for node in finished}
    saved = tree.to_dict()
    return {
        "id": "large",
        "question": "What is left of a large search?",
        "best": best,
        "answer": answers[best],
        "votes": {answers[best]: 1.0},
        "stopped": "done",
        "candidates": [{"node": node, "answer": answers[node], "score": tree.nodes[node].score} for node in finished],
        "selections": [],
        "root": saved["root"],
        "nodes": saved["nodes"],
    }
