"""Settings of speculation: every combination runs or is refused with a reason, and none changes a tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from decoding.engine import LocalEngine
from reason import ConfigError, build
from reason.config.compose import compose_settings, instantiate, list_options, load_option
from reason.engines import speculation
from reason.problem import Problem
from reason.runs.run import TaskRun
from reason.tasks.base import Task
from search.strategy import Strategy
from tests.support.fakes import HashBackend, ToyTokenizer
from tests.support.toy_solver import BytePrompt, toy_solver

VOCABULARY = 32
TEMPERATURES = (0.0, 0.7, 1.0)
RANKS_ONLY = ("token_recycling", "prompt_lookup")  # say what comes next and not how likely


def settings(**chosen: str) -> dict[str, Any]:
    names = {"speculation": "stand", "controller": "throughput", "acceptance": "coupled"} | chosen
    return {group: load_option(group, name) for group, name in names.items()}


@pytest.mark.parametrize("source", list_options("speculation"))
@pytest.mark.parametrize("controller", list_options("controller"))
@pytest.mark.parametrize("acceptance", list_options("acceptance"))
def test_every_combination_of_speculation_runs_or_is_refused_with_the_valid_choice(
    source: str, controller: str, acceptance: str
) -> None:
    chosen = settings(speculation=source, controller=controller, acceptance=acceptance)
    rule, dealer = instantiate("acceptance", chosen["acceptance"]), instantiate("controller", chosen["controller"])
    draw = "likely" if source in RANKS_ONLY else rule.supported_sampling[0]
    if source != "off" and draw not in rule.supported_sampling:
        with pytest.raises(
            ConfigError, match=f"acceptance={acceptance} needs draw={rule.supported_sampling[0]}.*, got draw=likely"
        ):
            speculation.validate_speculation(chosen)
    elif source != "off" and draw in ("without_replacement", "iid") and not dealer.uses_template:
        with pytest.raises(ConfigError, match=f"draw={draw} .* choose controller=template, chain or goodput"):
            speculation.validate_speculation(chosen)
    else:
        plan = speculation.validate_speculation(chosen)
        assert plan.lossless == (acceptance != "greedy_match")
        assert source == "off" or plan.node["draw"] == draw


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("speculation=stund",), "there is no speculation=stund (did you mean stand?); choose one of: draft_model,"),
        (("acceptance=typical",), "there is no acceptance=typical; choose one of: coupled, greedy_match,"),
        (
            ("controller=dsde",),
            "there is no controller=dsde; choose one of: chain, fixed, goodput, template, throughput",
        ),
        (
            ("acceptance=k_sequential", "speculation.draw=likely"),
            "acceptance=k_sequential needs draw=iid, got draw=likely",
        ),
        (("speculation.draw=iid",), "draw=iid may not be pruned by probability; choose controller=template, chain"),
        (("speculation.draw=best",), "acceptance=coupled needs draw=coupled or likely or"),
        (("acceptance=recursive_rejection", "controller=fixed"), "choose controller=template, chain or goodput"),
        (("acceptance=traversal", "speculation.draw=iid"), "acceptance=traversal needs draw=without_replacement"),
        (("speculation.depth=-1",), "depth must be an int >= "),
        (("speculation.source.max_order=0",), "max_order must be an int >= 1, got 0"),
        (("speculation.source.max_odrer=3",), "(did you mean speculation.source.max_order?)"),
        (("speculation.source._target_=os.system",), "speculation.source._target_ must be one of ours"),
        (("speculation=draft_model", "speculation.source.path=bundled:tiny"), "not among the bundled models"),
        (("speculation=draft_model", "speculation.source.path=/no/such"), "there is no such folder"),
        (
            ("controller=template", "controller.file=stond"),
            "file must be a JSON file or one of stand, token_recycling; there is no stond",
        ),
        (("controller.max_draft_tokens=many",), "controller.max_draft_tokens must be an int >= 0, got 'many'"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_wrong_speculation_setting_is_named_before_any_model_loads(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build.validate_settings(*compose_settings(overrides))
    assert message in str(raised.value)


def strategy(name: str, temperature: float) -> Strategy:
    made: Any = instantiate("search", compose_settings([f"search={name}"])[0]["search"])
    params = SamplingParams(max_tokens=40, temperature=temperature, top_p=0.95, stop=("\x07\x07",))
    smaller: Strategy = replace(made, n=8, sampling=params)
    return smaller


class FewLetters(BytePrompt):
    """Encodes a question with the toy's small vocabulary."""

    def encode(self, question: str) -> Tokens:
        return tuple(byte % VOCABULARY for byte in super().encode(question))


def toy_task(count: int) -> Task:
    problems = [Problem(id=f"toy/{i}", question=f"What is {i}?", answer=str(i % 3)) for i in range(count)]
    return Task("toy", problems)


def trees(folder: Path, one: Strategy, chosen: dict[str, Any]) -> dict[str, bytes]:
    """Returns the `trees` folder of a run. The toy model's arithmetic is exact for every batch."""
    folder.mkdir(parents=True)
    parts = speculation.validate_speculation(chosen).make_speculation(None, "the writer")
    is_plain = chosen["speculation"]["_target_"].endswith("NoDraft")
    engine = LocalEngine(
        HashBackend(VOCABULARY, scale=4.0),
        decode=ToyTokenizer().decode,
        eos_ids=[31],
        kv_bytes=2000,
        speculation=parts,
    )
    try:
        with toy_solver(one, engine=engine, prompt=FewLetters()) as ours:
            run = TaskRun(ours, toy_task(3), folder, run_metadata={"task": "toy", "seed": 0})
            assert not [result.error for result in run.solve_missing() if result.error]
            run.finish_run()
    finally:
        engine.close()
    # the throughput controller may find that drafts do not pay
    assert engine.stats.drafted > 0 or not chosen["controller"]["_target_"].endswith("FixedController") or is_plain
    return {file.name: file.read_bytes() for file in sorted((folder / "trees").iterdir())}


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", list_options("search"))
def test_saved_tree_is_the_same_byte_for_byte_with_speculation(name: str, temperature: float, tmp_path: Path) -> None:
    one = strategy(name, temperature)
    plain = trees(tmp_path / "off", one, settings(speculation="off"))
    assert len(plain) == 3
    for source in list_options("speculation"):
        if source != "off" and "draft_model" not in source:  # those need a model that speaks the toy's vocabulary
            for controller in ("fixed", "throughput") if source == "stand" else ("fixed",):
                chosen = settings(speculation=source, controller=controller)
                assert trees(tmp_path / source / controller, one, chosen) == plain, (source, controller)
