"""Prompts that a search writes itself, from the settings to the rows, files and pages of a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import reason
from decoding.core import SamplingParams, Tokens
from reason import ConfigError
from reason.config.compose import compose_settings
from reason.problem import Problem
from reason.prompt import Prompt, PromptFormat
from reason.runs.export_trees import EXPORT_FORMATS, export_trees
from reason.runs.pages.tree import tree_page_data
from reason.runs.run import TaskRun, tree_record
from reason.serve.choices import select_choices, usage_block
from reason.settings.validate import validate_settings
from reason.tasks.base import Task
from reason.tasks.puzzles import forms
from reason.thinking import ThinkingFormat
from search.revision_search import RevisionSearch
from search.strategies.inftythink import TEMPLATES, InftyThink
from search.strategies.pdr import Pdr
from search.strategies.self_refine import SelfRefine
from search.templates import fill_template
from search.tree import SearchTree
from tests.support.fakes import WordTokenizer
from tests.support.paths import ROOT
from tests.support.searches import load_search_yaml, search_classes
from tests.support.toy_search import ToyEngine, decode_bytes
from tests.support.toy_solver import toy_solver

FORM = ThinkingFormat(opening="<think>", closing="</think>", forced_end="</think>So ", opened_by_prompt=True)
FORMS = {
    "nothing": "nothing yet.",
    "summary": "{question} Thought: {thought}",
    "put_in": "\nNotes.\n{closing}\n",
    "go_on": "{question} Notes: {summary}",
}
SAMPLING = SamplingParams(max_tokens=400)
REVISIONS = {name: made for name, made in search_classes(RevisionSearch).items() if not name.endswith("_notes")}
"""Without those in the forms of the bundled thinker, whose defaults are not those of the class."""


def think(seed: int, prefix: Tokens) -> str:
    """A long thought; notes behind a closing tag; from notes, a short thought and the answer."""
    text = decode_bytes(prefix)
    if text.rstrip().endswith("</think>"):
        return f"note {seed % 9}"
    return "Yes.</think>It is \\boxed{7}." if "Notes:" in text else "hmm. \n\n" * 300


def infty(ask: str, n: int = 2) -> InftyThink:
    return InftyThink(n=n, ask=ask, think_tokens=50, templates=FORMS, sampling=SAMPLING)


def solve(ask: str, problem: Problem | str = "3+4?", **changes: Any) -> tuple[reason.Solution, list[str]]:
    engine = ToyEngine(think)
    arguments: dict[str, Any] = {"engine": engine, "thinking": FORM, "strategy": infty(ask)}
    with toy_solver(**(arguments | changes)) as solver:
        solution = solver.solve(problem)
    solution.tree.assert_invariants()
    return solution, [decode_bytes(request.prefix) for request in engine.requests]


@pytest.mark.parametrize("ask", ["prompt", "put_in"])
def test_solution_is_that_of_the_last_context(ask: str) -> None:
    solution, prefixes = solve(ask)
    assert (solution.answer, solution.thought, solution.text) == ("7", "Yes.", "It is \\boxed{7}.")
    begin = "Question: 3+4? Thought: hmm." if ask == "prompt" else "Question: 3+4?\nhmm."
    assert prefixes[2].startswith(begin)
    assert prefixes[2].endswith("\n\n</think>\n\n" if ask == "prompt" else "\nNotes.\n</think>\n")
    assert all(prefix.startswith("Question: 3+4? Notes: note ") for prefix in prefixes[4:])


def test_thought_that_the_template_leaves_out_is_not_skipped_again() -> None:
    prompt = tuple(b"Question: 3+4?<think></think>\n")
    _, prefixes = solve("prompt", Problem.from_question("3+4?", prompt=prompt))
    assert not any(prefix.endswith("</think>\n\n") for prefix in prefixes)


def test_engine_that_cannot_continue_a_text_gets_no_closing_tag() -> None:
    def write(seed: int, prefix: Tokens) -> str:
        if "Thought:" in decode_bytes(prefix):
            return "I sum it up.</think>a note"
        return think(seed, prefix)

    engine = ToyEngine(write)
    solution, _ = solve("prompt", engine=engine, ends_thoughts=False)
    texts = [decode_bytes(request.prefix) for request in engine.requests]
    assert solution.answer == "7"
    assert not any("</think>" in text for text in texts)
    assert texts[-1] == "Question: 3+4? Notes: a note\n"


def test_text_to_continue_is_rendered_as_text() -> None:
    prompt = tuple(b"Once upon a time")
    _, prefixes = solve("prompt", Problem.from_question("Once upon a time", prompt=prompt))
    assert prefixes[0] == "Once upon a time"
    assert prefixes[2].startswith("Once upon a time Thought: hmm.")
    assert prefixes[-1].startswith("Once upon a time Notes: note ")


def test_request_has_the_system_prompt_and_not_the_instructions_of_questions() -> None:
    tokenizer = WordTokenizer()
    prompt = Prompt(PromptFormat(system="Be brief.", user="{question} Box it."), tokenizer)
    assert tokenizer.decode(prompt.encode("Why?")) == "[system] Be brief. [user] Why? Box it. [assistant] "
    assert tokenizer.decode(prompt.encode_request("Sum up.")) == "[system] Be brief. [user] Sum up. [assistant] "
    raw = Prompt(PromptFormat(raw="Q: {question} A:"), tokenizer)
    assert tokenizer.decode(raw.encode_request("Sum up.")) == "<s> Q: Sum up. A:"


@pytest.mark.parametrize("ask", ["prompt", "put_in"])
def test_response_of_the_server_counts_earlier_thoughts_and_notes_as_reasoning(ask: str) -> None:
    solution, _ = solve(ask)
    choices = select_choices(solution, 1, (), solution.reader)
    assert [(choice.thought, choice.text) for choice in choices] == [("Yes.", "It is \\boxed{7}.")]
    usage = usage_block(solution, choices)
    assert usage["completion_tokens"] == solution.usage.tokens
    shown = len("It is \\boxed{7}.") + 1  # and the token that ends it
    assert usage["completion_tokens_details"]["reasoning_tokens"] == solution.usage.tokens - shown


@pytest.mark.parametrize("ask", ["prompt", "put_in"])
def test_record_and_page_show_the_new_prompts(ask: str) -> None:
    solution, _ = solve(ask)
    record = tree_record(solution)
    assert [context["purpose"] for context in record["contexts"]] == ["notes"] * 2 + ["solution"] * 2
    notes = [i for i, node in enumerate(solution.tree.nodes) if node.parent in (-2, -3)]
    assert not {str(node) for node in notes} & record["thoughts"].keys()
    data: Mapping[str, Any] = tree_page_data(record, None)
    for node, context in enumerate(data["nodes"]["context"]):
        if context is not None:
            assert data["nodes"]["parent"][node] == data["contexts"][context]["sources"][0] < node
    assert [data["nodes"]["context"][node] for node in notes] == [0, 1]


@pytest.mark.parametrize("strategy", [infty("prompt"), infty("put_in"), Pdr(n=2), SelfRefine(n=2)], ids=str)
def test_run_is_saved_resumed_and_exported(strategy: Any, tmp_path: Path) -> None:
    strategy = dataclasses.replace(strategy, sampling=SAMPLING)
    problems = [Problem(id=f"p{i}", question=f"{i}+4?", answer="7") for i in range(3)]
    rows = []
    for folder, stops in ((tmp_path / "whole", (3,)), (tmp_path / "parts", (1, 3))):
        for stop in stops:
            with toy_solver(strategy, engine=ToyEngine(think), thinking=FORM, concurrency=1) as solver:
                run = TaskRun(solver, Task("toy", problems), folder, run_metadata={"task": "toy", "seed": 0})
                for number, _ in enumerate(run.solve_missing(), 1):
                    if number == stop:
                        break
                rows = run.finish_run()
        assert [row.error for row in rows] == [None] * 3
    files = sorted((tmp_path / "whole" / "trees").glob("*.json"))
    assert len(files) == 3
    for file in files:
        assert file.read_text() == (tmp_path / "parts" / "trees" / file.name).read_text()
        saved = json.loads(file.read_text())
        tree = SearchTree.from_dict(saved)
        assert tree.to_dict() == {key: saved[key] for key in ("root", "nodes", "contexts")}
        (row,) = [row for row in rows if row.id == saved["id"]]
        assert [s.tokens for s in row.samples] == [tree.nodes[s.node].num_path_tokens for s in row.samples]
    for export_format in EXPORT_FORMATS:
        written = export_trees(tmp_path / "whole", tmp_path / "out", export_format)
        assert len(written) == (1 if export_format == "rollouts" else 3)
    lines = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert [line["uid"] for line in lines] == ["p0", "p1", "p2"]
    for line, row in zip(lines, rows, strict=True):
        rewards = {r["node"]: r["reward_score"] for r in line["rollouts"] if r["is_solution"]}
        assert rewards == {sample.node: float(sample.is_correct) for sample in row.samples}


@pytest.mark.parametrize("ask", ["prompt", "put_in"])
def test_bundled_engine_keeps_the_kv_of_what_prompts_share(ask: str) -> None:
    settings = [f"search.ask={ask}", "search.n=2", "search.iterations=2", "search.think_tokens=20"]
    settings += ["search.summary_tokens=10", "speculation=off", "scorer=none"]
    with reason.load("search=inftythink", *settings) as solver:
        solution = solver.solve("x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.")
        solver.assert_invariants()
    tree = solution.tree
    tree.assert_invariants()
    requests = [number for number, context in tree.numbered_contexts() if context.purpose == "notes"]
    assert len(requests) == 2
    if ask == "put_in":  # all but the text that was put in, and the last token of the thought
        shared = [tree.count_prefix_tokens(node) - 1 for context in tree.contexts[:2] for node in context.sources]
        assert solution.usage.cached_tokens >= sum(shared)


@pytest.mark.parametrize("name", REVISIONS)
def test_yaml_has_the_templates_and_knobs_of_the_class(name: str) -> None:
    settings = compose_settings([f"search={name}"])[0]["search"]
    made = REVISIONS[name]()
    for field in dataclasses.fields(made):
        if field.name != "sampling":
            assert settings[field.name] == getattr(made, field.name), field.name
    assert settings.keys() - {"_target_"} == {field.name for field in dataclasses.fields(made)}
    assert "templates" in load_search_yaml(name)


@pytest.mark.parametrize("name", REVISIONS)
def test_router_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"router=arbitrage .* search={name} writes prompts of its own"):
        validate_settings(*compose_settings([f"search={name}", "router=arbitrage", "embedder=words"]))


CHAT = ("engine=openai", "engine.model=x", "engine.urls=[http://localhost:1]", "model=served", "scorer=none")


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        (("search=pdr",), False),
        (("search=self_refine",), False),
        (("search=inftythink",), True),
        (("search=pdr", "search.distill=notes", "search.think_tokens=100"), True),
    ],
)
def test_chat_that_begins_every_answer_anew_is_refused_where_answers_are_continued(
    settings: tuple[str, ...], is_refused: bool
) -> None:
    composed = compose_settings([*CHAT, *settings])
    if not is_refused:
        validate_settings(*composed)
        return
    with pytest.raises(ConfigError, match=f"{settings[0]} continues earlier output, and engine.api=chat begins every"):
        validate_settings(*composed)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("search.templates.go_on='{question}'", r"search.templates.go_on must hold \{summary\}, got '\{question\}'"),
        ("search.templates.go_on='{question} {sumary} {summary}'", r"search.templates.go_on cannot hold \{sumary\}"),
        ("search.templates.nothing=3", "search.templates.nothing must be a text, got 3"),
        ("search.ask=loudly", "search.ask must be one of prompt, put_in"),
    ],
)
def test_wrong_template_is_named_before_a_model_loads(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_settings(*compose_settings(["search=inftythink", "model.path=nowhere", setting]))


def test_forms_of_the_documentation_are_those_that_the_bundled_thinker_was_trained_for() -> None:
    yaml = (
        (ROOT / "docs" / "thinking.md")
        .read_text()
        .partition("```yaml\n# FOLDER/search/notes.yaml")[2]
        .partition("```")[0]
    )
    templates = OmegaConf.create(yaml.partition("\n")[2]).templates
    assert fill_template(templates.put_in, closing=forms.CLOSING) == forms.NOTES_REQUEST
    assert fill_template(templates.go_on, question="Find x.", summary="none") == forms.add_notes("Find x.", "none")


def test_search_of_two_templates_keeps_the_others(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    yaml = """
defaults:
  - inftythink
  - _self_
ask: put_in
templates:
  put_in: "\\n\\nWrite notes.\\n{closing}\\n\\nNotes so far: "
"""
    (tmp_path / "search" / "notes.yaml").write_text(yaml)
    settings = [f"hydra.searchpath=[file://{tmp_path}]", "search=notes", "search.n=2", "search.think_tokens=20"]
    with reason.load(*settings, "search.iterations=2", "speculation=off") as solver:
        strategy: Any = solver.strategy
        assert strategy.templates == TEMPLATES | {"put_in": "\n\nWrite notes.\n{closing}\n\nNotes so far: "}
        solution = solver.solve("x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.")
    assert [context.text for context in solution.tree.contexts[:2]] == ["\n\nWrite notes.\n\n\nNotes so far: "] * 2
