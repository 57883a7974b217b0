"""Tree records and results of made-up searches, for tests of pages."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from decoding.core import Usage
from reason.runs.pages.records import CandidateRecord, TreeRecord
from reason.runs.result import ProblemResult
from search.allocation import allocate_by_softmax
from search.selection import record_selection
from search.tree import SearchTree, Step
from search.voting import choose_solution

NASTY = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "\u2028\u2029 \\u003c \"quotes\" 'quotes' & &lt; \\frac{1}{2} $x^2$ 日本 🤯",
    "\ud800 a half of a character",
    "__DATA__",
)


def make_record(n: int = 12, levels: int = 6, seed: int = 0, *, text: Callable[[int], str] | None = None) -> TreeRecord:
    """Returns the tree record of a made-up search: `n` branches over `levels` levels, allocated as REBASE does."""
    dice = random.Random(seed)
    tree = SearchTree(tuple(range(40)))
    open_nodes, widths = [SearchTree.ROOT], [n]
    made: list[dict[str, Any]] = []
    ended: list[int] = []
    for level in range(levels):
        parents = [node for node, width in zip(open_nodes, widths, strict=True) for _ in range(width)]
        born = [_grow(tree, parent, dice, last=level == levels - 1, text=text) for parent in parents]
        ended += [node for node in born if tree.nodes[node].finish]
        open_nodes = [node for node in born if not tree.nodes[node].finish]
        if not open_nodes:
            break
        scores = [tree.nodes[node].score or 0.0 for node in open_nodes]
        widths = allocate_by_softmax(scores, max(n - len(ended), 1), 0.2)
        alike = {node: "redundancy" for node in open_nodes if dice.random() < 0.25}
        note: dict[str, float | str] = {"gap": 0.01, "solver": "exact"} if level % 2 else {}
        made.append(asdict(record_selection(tree, open_nodes, widths, reasons=alike, note=note)))
    answers = [_answer(tree.nodes[node].step.text) for node in ended]
    scores_of = [tree.nodes[node].score for node in ended]
    choice = choose_solution(answers, scores_of, "weighted")
    best = None if choice.index is None else choice.index
    saved = tree.to_dict()
    return {
        "id": "aime/2024/7",
        "question": "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
        "best": None if best is None else ended[best],
        "answer": None if best is None else answers[best],
        "votes": choice.votes,
        "stopped": "done",
        "strategy": {
            "_target_": "search.strategies.rebase.Rebase",
            "n": n,
            "temperature": 0.2,
            "sampling": {"temperature": 1.0},
        },
        "candidates": [
            {"node": node, "answer": answer, "score": score}
            for node, answer, score in zip(ended, answers, scores_of, strict=True)
        ],
        "selections": json.loads(json.dumps(made)),
        "root": saved["root"],
        "nodes": saved["nodes"],
    }


def _grow(tree: SearchTree, parent: int, dice: random.Random, *, last: bool, text: Callable[[int], str] | None) -> int:
    depth = 1 if parent == SearchTree.ROOT else tree.nodes[parent].depth + 1
    before = 0.6 if parent == SearchTree.ROOT else tree.nodes[parent].score or 0.5
    finished = depth > 2 and (last or dice.random() < 0.12)
    value = dice.choice([15, 15, 15, 15, 4, 8, 12])
    lead = dice.choice(["We get", "So", "First,", "Next,", "Let us compute", "Reducing modulo 19 gives"])
    written = text(len(tree)) if text else f"{lead} x{depth}: 5*{value}={5 * value}, {5 * value}+8={5 * value + 8}.\n\n"
    written = f"The answer is \\boxed{{{value}}}." if finished else written
    tokens = tuple(range(8 + dice.randrange(20)))
    step = Step(tokens, written, tuple(-dice.random() for _ in tokens))
    score = min(0.99, max(0.01, 0.6 * before + 0.2 + dice.gauss(0, 0.2)))
    return tree.add_node(parent, step, score=score, finish="eos" if finished else None)


def _answer(text: str) -> str | None:
    match = re.search(r"\\boxed\{(.*)\}", text)
    return match.group(1) if match else None


def result_of(record: TreeRecord, gold: str | None = "15") -> ProblemResult:
    """Returns the graded result of a record."""
    return ProblemResult.from_json(
        {
            "id": record["id"],
            "question": record["question"],
            "gold": gold,
            "answer": record["answer"],
            "grade": "right" if record["answer"] == gold else "wrong",
            "samples": [{**c, "grade": "right" if c["answer"] == gold else "wrong"} for c in record["candidates"]],
            "usage": {"tokens": 3047, "calls": 71, "seconds": 4.25, "scorer_calls": 68},
        }
    )


def make_results(count: int) -> list[ProblemResult]:
    """Returns results with every grade, some with an error."""
    dice = random.Random(0)
    grades = ["right", "right", "wrong", "no_answer", "ungraded"]
    return [
        ProblemResult.from_json(
            {
                "id": f"aime/{i}",
                "question": f"Let $a_{i}$ have $a_0 = {i}$, $a_{{k+1}} = 5a_k + 8$ modulo 19. Find $a_3$.",
                "grade": grades[i % 5],
                "answer": None if grades[i % 5] == "no_answer" else str(i % 19),
                "gold": None if grades[i % 5] == "ungraded" else str(i % 17),
                "error": "RuntimeError: out of pages" if i % 50 == 49 else None,
                "nodes": dice.randrange(20, 400),
                "usage": asdict(Usage(tokens=dice.randrange(400, 9000), seconds=dice.expovariate(0.2))),
            }
        )
        for i in range(count)
    ]


def solutions(*pairs: tuple[str | None, float | None], rule: str = "weighted") -> TreeRecord:
    """Returns a record of finished one-step solutions from (answer, score) pairs."""
    choice = choose_solution([answer for answer, _ in pairs], [score for _, score in pairs], rule)
    candidates: list[CandidateRecord] = [
        {"node": i, "answer": answer, "score": score} for i, (answer, score) in enumerate(pairs)
    ]
    return {
        "best": choice.index,
        "answer": None if choice.index is None else pairs[choice.index][0],
        "votes": choice.votes,
        "candidates": candidates,
        "nodes": [{"parent": -1, "finish": "eos"} for _ in pairs],
    }


def embedded(page: str) -> Any:
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match.group(1))
