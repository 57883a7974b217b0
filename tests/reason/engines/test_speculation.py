"""Settings of speculation: every combination runs or is refused with a reason, and none changes a tree."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from decoding.core import SamplingParams, Tokens
from decoding.engine import LocalEngine
from decoding.speculation.acceptance.verify import rule_name
from reason import ConfigError
from reason.config.compose import compose_settings, instantiate, list_options, load_option
from reason.engines import speculation
from reason.problem import Problem
from reason.runs.run import TaskRun
from reason.settings.validate import validate_settings
from reason.tasks.base import Task
from search.strategy import Strategy
from tests.support.fakes import HashBackend, ToyTokenizer
from tests.support.searches import option_names
from tests.support.toy_solver import BytePrompt, toy_solver

VOCABULARY = 32
LOSSY = ("greedy_match", "judge", "reflective", "typical")
TEMPERATURES = (0.0, 0.7, 1.0)
RANKS_ONLY = ("token_recycling", "prompt_lookup")  # say what comes next and not how likely
DRAFTS_LIKELIEST = (*RANKS_ONLY, "suffix_published", "aded", "goose")


load_once = cache(load_option)


def settings(**chosen: str) -> dict[str, Any]:
    names = {"speculation": "stand", "controller": "throughput", "acceptance": "coupled"} | chosen
    return {group: deepcopy(load_once(group, name)) for group, name in names.items()}


@pytest.mark.parametrize("source", list_options("speculation"))
@pytest.mark.parametrize("controller", list_options("controller"))
@pytest.mark.parametrize("acceptance", list_options("acceptance"))
def test_every_combination_of_speculation_runs_or_is_refused_with_the_valid_choice(
    source: str, controller: str, acceptance: str
) -> None:
    chosen = settings(speculation=source, controller=controller, acceptance=acceptance)
    rule, dealer = instantiate("acceptance", chosen["acceptance"]), instantiate("controller", chosen["controller"])
    draw = "likely" if source in DRAFTS_LIKELIEST else rule.supported_sampling[0]
    if source != "off" and draw not in rule.supported_sampling:
        with pytest.raises(
            ConfigError, match=f"acceptance={acceptance} needs draw={rule.supported_sampling[0]}.*, got draw=likely"
        ):
            speculation.validate_speculation(chosen)
    elif source != "off" and draw in ("without_replacement", "iid") and not dealer.uses_template:
        with pytest.raises(ConfigError, match=f"draw={draw} .* choose controller=template, branching"):
            speculation.validate_speculation(chosen)
    else:
        plan = speculation.validate_speculation(chosen)
        assert plan.lossless == (acceptance not in LOSSY)
        assert source == "off" or plan.node["draw"] == draw


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("speculation=stund",), "there is no speculation=stund (did you mean stand?); choose one of: "),
        (("acceptance=typicel",), "there is no acceptance=typicel (did you mean typical?); choose one of: coupled, "),
        (("acceptance=typical", "acceptance.epsilon=1"), "acceptance.epsilon must be in (0, 1), got 1"),
        (("acceptance=judge", "acceptance.path=bundled:draft"), "is a llama, not a head of acceptance=judge"),
        (("acceptance=judge", "model.path=bundled:draft"), "of 192 numbers, and the target model has 128; train one"),
        (("acceptance=judge", "acceptance.path=null"), "acceptance.path must be a folder, a hub id or bundled:NAME"),
        (("speculation=swift", "speculation.source.skip=1"), "skip must be in (0, 1), got 1"),
        (("speculation=draft_model", "speculation.source.stop_threshold=2"), "stop_threshold must be in [0, 1], got 2"),
        (
            ("speculation=draft_model", "speculation.source.stop_head=bundled:router"),
            "stop_head=bundled:router is a step_evidence; make one with reason train stages=[acceptance_head]",
        ),
        (("speculation=draft_model", "speculation.source.learn_every=0"), "learn_every must be an int >= 1 or null"),
        (("speculation=draft_model", "speculation.source.vocabulary=/no/such"), "vocabulary=/no/such: there is no"),
        (
            ("speculation=draft_model", "speculation.source.vocabulary=bundled:draft"),
            "vocabulary=bundled:draft is a llama; make one with reason train stages=[draft_vocabulary]",
        ),
        (
            ("controller=dsde",),
            "there is no controller=dsde; choose one of: ",
        ),
        (
            ("acceptance=k_sequential", "speculation.draw=likely"),
            "acceptance=k_sequential needs draw=iid, got draw=likely",
        ),
        (("speculation.draw=iid",), "draw=iid may not be pruned by probability; choose controller=template, branching"),
        (("speculation.draw=best",), "acceptance=coupled needs draw=coupled or likely or"),
        (("acceptance=recursive_rejection", "controller=fixed"), "choose controller=template, branching"),
        (("acceptance=traversal", "speculation.draw=likely"), "acceptance=traversal needs draw=without_replacement"),
        (("acceptance=traversal", "speculation.draw=iid"), "draw=iid may not be pruned by probability"),
        (("speculation.draw=stochastic_beam",), "draw=stochastic_beam has a shape of its own and needs a number"),
        (
            ("acceptance=recursive_rejection", "speculation.draw=dynamic_tree", "controller=template"),
            "draw=dynamic_tree has a shape of its own and needs a number of nodes; choose controller=fixed",
        ),
        (
            ("acceptance=k_sequential", "speculation.draw=stochastic_beam", "controller=fixed"),
            "acceptance=k_sequential needs draw=iid, got draw=stochastic_beam",
        ),
        (("speculation=token_recycling", "speculation.template=stond"), "there is no stond"),
        (("controller=branching", "controller.factors=[2,0]"), "must be an int >= 1, got 0"),
        (("controller=delayed", "controller.paths=0"), "paths must be an int >= 1"),
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
        validate_settings(*compose_settings(overrides))
    assert message in str(raised.value)


def test_head_for_the_target_model_is_not_used_for_a_small_one() -> None:
    settings, choices = compose_settings(["router=target_only", "acceptance=judge"])
    spec = validate_settings(settings, choices).speculation
    assert rule_name(spec.acceptance) == "judge"
    assert rule_name(spec.for_small_model().acceptance) == "coupled"
    for other in ("coupled", "typical"):
        rule = speculation.validate_speculation(compose_settings([f"acceptance={other}"])[0]).for_small_model()
        assert rule_name(rule.acceptance) == other


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
@pytest.mark.parametrize("name", option_names("search"))
def test_saved_tree_is_the_same_byte_for_byte_with_speculation(name: str, temperature: float, tmp_path: Path) -> None:
    one = strategy(name, temperature)
    plain = trees(tmp_path / "off", one, settings(speculation="off"))
    assert len(plain) == 3
    for source in list_options("speculation"):
        # those need a model that speaks the toy's vocabulary, or that has layers
        if source != "off" and "DraftModelSource" not in str(load_once("speculation", source)):
            for controller in ("fixed", "throughput") if source == "stand" else ("fixed",):
                chosen = settings(speculation=source, controller=controller)
                assert trees(tmp_path / source / controller, one, chosen) == plain, (source, controller)
