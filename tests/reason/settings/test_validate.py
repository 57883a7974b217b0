"""Every wrong setting ends with one sentence that names it and the valid choice, before a model loads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import reason
from reason import ConfigError
from reason.config.compose import compose_settings
from reason.engines.openai_api.settings import OpenAISettings
from reason.runs import resume
from reason.scorers.likelihood import LikelihoodScorer
from reason.settings.solve_spec import SolveSpec
from reason.settings.validate import validate_settings
from search.strategies.self_consistency import SelfConsistency

SC = ("search=self_consistency",)
WRONG = {
    ("search=best_of_m",): "there is no search=best_of_m (did you mean best_of_n?); choose one of: ",
    ("scorer=prn",): "there is no scorer=prn (did you mean prm?); choose one of:",
    ("model=qwen2.5-math-8b",): "did you mean qwen2.5-math-7b?",
    ("engine=vroom",): "there is no engine=vroom; choose one of:",
    ("+task=aimee",): "there is no task=aimee (did you mean aime?); choose one of: aime, code, file, gpqa",
    ("task=aime",): "a task is added with +task=NAME",
    ("task.limit=3",): "a task is added with +task=NAME",
    (
        "search.agg_stategy=last",
    ): "there is no setting search.agg_stategy (did you mean search.agg_strategy?); search has:",
    ("search.sampling.temprature=1",): "(did you mean search.sampling.temperature?)",
    (
        "+search.m=4",
    ): "there is no setting search.m; search has: agg_strategy, drop_percentile, drop_window, n, sampling",
    ("+foo=1",): "there is no setting foo; this program has:",
    ("sede=1",): "there is no setting sede (did you mean seed?)",
    ("search.n=0",): "search.n must be an int >= 1, got 0",
    ("search.n=two",): "search.n must be an int >= 1, got 'two'",
    ("search.agg_strategy=max",): "search.agg_strategy must be one of last, min, prod, mean; got 'max'",
    ("search=self_consistency", "search.select=loud"): "search.select must be one of majority, weighted, best",
    ("search.sampling.top_p=2",): "search.sampling.top_p must be in (0, 1], got 2",
    ("seed=-1",): "seed must be an int >= 0, got -1",
    ("concurrency=0",): "concurrency must be an int >= 1, got 0",
    ("limit=0",): "limit must be an int >= 1 or null, got 0",
    ("budget.tokens=0",): "budget.tokens must be an int >= 1 or null, got 0",
    ("~scorer",): "scorer is not set",
    ("engine._target_=os.system",): "engine._target_ must be one of ours",
    ("scorer.adapter._target_=os.system",): "scorer.adapter._target_ must be one of ours",
    ("search.n=[1",): "cannot read the setting search.n=[1",
    ("search=best_of_n,self_consistency",): "to run one after the other add -m",
    ("scorer=none",): "chooses by score and scorer=none gives none; choose scorer=prm",
    ("search._target_=os.system",): "search._target_ must be one of ours",
    ("search.sampling._target_=subprocess.run",): "search.sampling._target_ must be one of ours",
    ("model=hf",): "model.path must be set",
    ("model.path=/no/such/folder",): "model.path=/no/such/folder: there is no such folder",
    ("model.path=bundled:giant",): "model.path=bundled:giant: not among the bundled models",
    ("model.path=nobody-has-this/model",): "model.path=nobody-has-this/model: no such folder",
    ("scorer.path=/no/such/folder", "model.path=HERE"): "scorer.path=/no/such/folder: there is no such folder",
    ("scorer.path=bundled:giant", "model.path=HERE"): "scorer.path=bundled:giant: not among the bundled models",
    ("scorer.path=nobody-has-this/model", "model.path=HERE"): "scorer.path=nobody-has-this/model: no such folder",
    ("scorer.dtype=float8",): "scorer.dtype must be one of auto, float32, float64, bfloat16; got 'float8'",
    ("scorer.device=gpu",): "scorer.device must be auto, cpu, cuda or cuda:N, got 'gpu'",
    (
        "scorer=token_classification",
        "scorer.adapter.reads=ids",
    ): "scorer.adapter.reads must be tokens or text, got 'ids'",
    ("engine=sglang", "engine.urls=[localhost:30000]"): "engine.urls must be addresses like http://host:30000, got",
    ("engine=sglang", "engine.urls=[]"): "engine.urls must be one or more addresses, got ",
    ("engine=sglang", "engine.urls=[http://a:1,http://a:1/]"): "engine.urls must differ, got http://a:1, http://a:1",
    ("engine=sglang", "engine.max_retries=0"): "engine.max_retries must be an int >= 1, got 0",
    ("engine=sglang", "engine.cooldown_s=soon"): "engine.cooldown_s must be a number > 0, got 'soon'",
    ("engine=sglang", "engine.url=http://a:1"): "(did you mean engine.urls?)",
    ("engine=sglang", "speculation=stand"): "speculation=stand drafts inside engine=local; with engine=sglang leave",
    ("engine=sglang", "search=ets"): "embedder=hidden_states needs hidden states, which engine=sglang does not give",
    ("engine=openai", "engine.urls=[localhost:8000]"): "engine.urls must be addresses like http://host:8000/v1, got",
    ("engine=openai", "engine.urls=[http://me:pw@a/v1]"): "/v1, without a name or a password in them",
    ("engine=openai", "engine.api=responses"): "engine.api must be one of completions, chat or null, got 'responses'",
    (
        "engine=openai",
        "engine.omit=[stop]",
    ): "engine.omit must be a list of some of temperature, top_p, top_k, min_p, seed",
    ("engine=openai", "+engine.extra_body.stop=x"): "engine.extra_body.stop has a setting of its own",
    (
        "engine=openai",
        "engine.api_key=sk-1",
    ): "engine.api_key must come from the environment, as engine.api_key='${oc.env",
    (
        "engine=openai",
        "engine.api_key='${oc.env:NO_SUCH_KEY}'",
    ): "engine.api_key: Environment variable 'NO_SUCH_KEY' not found",
    (
        "engine=openai",
        *SC,
        "speculation=stand",
    ): "speculation=stand drafts inside engine=local; with engine=openai leave",
    ("engine=openai", "search=ets", "model=bundled"): "needs hidden states, which engine=openai does not give",
    (
        "engine=openai",
        "search=beam_search",
        "scorer=likelihood",
    ): "search=beam_search continues earlier output, and engine.api=chat",
    ("engine=openai", *SC, "router=draft_only"): "router=draft_only continues earlier output, and engine.api=chat",
    (
        "engine=openai",
        *SC,
        "model.prompt.answer_start=So",
    ): "model.prompt.answer_start begins the answer, and engine.api=chat",
    ("engine=openai", *SC, "engine.api=completions"): "engine.api=completions sends text; set model.prompt.raw",
    ("engine=openai", *SC, "engine.api=chat", "model=bundled"): "engine.api=chat sends conversations, which the server",
    ("engine=openai", *SC, "engine.prefill=true", "model=bundled"): "engine.prefill is for engine.api=chat",
    ("engine=openai", *SC, "scorer=prm"): "scorer.path=bundled:prm reads the writer's token ids, but its vocabulary",
    (
        "engine=openai",
        *SC,
        "scorer=likelihood",
    ): "scorer=likelihood needs log-probabilities, which engine=openai has only where",
    ("engine=openai", *SC, "engine.logprobs=true"): "engine.logprobs are of tokens, which model=served does not know",
    ("engine=openai", *SC, "engine.omit=[top_p]"): "top_p=0.95 is not sent (engine.omit); set search.sampling.top_p=1",
    (
        "model=served",
        *SC,
    ): "model.path=bytes (model=served) has no weights and no tokenizer; it goes with engine=openai",
    ("model.prompt.raw=hello",): "model.prompt.raw must contain {question}",
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def planned(*overrides: str) -> tuple[SolveSpec, dict[str, str]]:
    config, choices = compose_settings(overrides)
    return validate_settings(config, choices), choices


@pytest.mark.parametrize("overrides", WRONG, ids=" ".join)
def test_wrong_setting_is_named(overrides: tuple[str, ...], tiny_writer: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(*(override.replace("HERE", str(tiny_writer)) for override in overrides))
    message = str(caught.value)
    assert WRONG[overrides] in message
    assert not re.search(r"\b(\w+)(\.|: )\1\.", message), "a doubled prefix"
    assert "\n" not in message
    assert "Error" not in message


ADVISED = {
    (): ["search=self_consistency", "scorer=judge"],
    ("search=best_of_n", "search.n=4"): ["search=self_consistency", "scorer=judge"],
    ("search=beam_search", "engine.prefill=true"): ["search=self_consistency", "scorer=judge"],
}


@pytest.mark.parametrize("given", ADVISED, ids=lambda given: " ".join(given) or "nothing")
def test_advice_for_a_hosted_model_is_not_refused_in_its_turn(given: tuple[str, ...]) -> None:
    first = ("engine=openai", "engine.model=m", *given)
    with pytest.raises(ConfigError) as caught:
        planned(*first)
    assert "scorer=prm" not in str(caught.value)
    for setting in ADVISED[given]:
        assert setting in str(caught.value)
        others = [one for one in first if not setting.startswith(one.partition("=")[0] + "=")]
        planned(*others, setting)


def test_advice_of_confidence_works_with_the_tokenizer_here(tiny_writer: Path) -> None:
    hosted = ("engine=openai", "engine.model=m", "engine.api=completions")
    with pytest.raises(ConfigError, match=r"confidence .*\(model=hf model\.path=FOLDER\) and engine\.logprobs=true"):
        planned(*hosted)
    planned(*hosted, "model=hf", f"model.path={tiny_writer}", "engine.logprobs=true", "scorer=confidence")


def test_unreachable_server_is_named_before_anything_loads(tiny: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^engine\.urls: nothing answers at http://127\.0\.0\.1:9 "):
        reason.load("engine=sglang", "engine.urls=http://127.0.0.1:9", *tiny)


def test_api_key_is_looked_up_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("engine=openai", "engine.api_key='${oc.env:A_KEY}'", *SC)
    monkeypatch.setenv("A_KEY", "sk-secret")
    plan, _ = planned(*settings)
    assert isinstance(plan.engine.settings, OpenAISettings)
    assert plan.engine.settings.api_key == "sk-secret"
    assert plan.config["engine"]["api_key"] == "${oc.env:A_KEY}"
    assert "sk-secret" not in repr(plan)
    monkeypatch.setenv("A_KEY", "sk-another")
    assert planned(*settings)[0].config_hash == plan.config_hash


def test_wrong_setting_does_not_import_torch() -> None:
    code = (
        "import sys, reason\ntry: reason.load('search.n=0')\nexcept reason.ConfigError as e: print(e)\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["search.n must be an int >= 1, got 0", "[]"]


def test_strategy_is_checked_before_the_model_is_located() -> None:
    with pytest.raises(ConfigError, match=r"search\.n must be"):
        planned("search.n=0", "model.path=/no/such/folder")


def test_token_scorer_must_share_the_vocabulary_of_the_target(tiny: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny[0].partition("=")[2], other)
    file = other / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace("Try this. ", "Try that. "), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^scorer\.path=.*vocabulary is another one than that of model\.path"):
        planned(f"model.path={other}", *tiny[1:])


def test_target_tokenizer_is_compared_again_when_it_is_loaded(tiny: list[str], tmp_path: Path) -> None:
    """Some tokens are known only then, as tokenizer.json does not name them; weights load later."""
    other = tmp_path / "other"
    shutil.copytree(tiny[0].partition("=")[2], other)
    file = other / "tokenizer_config.json"
    described = json.loads(file.read_text(encoding="utf-8")) | {"pad_token": "<another>"}
    file.write_text(json.dumps(described), encoding="utf-8")
    plan, _ = planned(f"model.path={other}", *tiny[1:])
    (other / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"^scorer\.path=.*vocabulary is another one"):
        plan.load_solver()


def test_checkpoint_without_tokenizer_is_named(tiny: list[str], tmp_path: Path) -> None:
    """transformers makes an empty one, and every text becomes nothing."""
    bare = tmp_path / "bare"
    shutil.copytree(tiny[0].partition("=")[2], bare, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(ConfigError, match=r"^model\.path: .*bare has no tokenizer"):
        reason.load(f"model.path={bare}", *tiny[1:])


def test_solve_spec_holds_objects_and_no_config(tiny: list[str]) -> None:
    settings = ["search=self_consistency", "search.n=3", "search.sampling.temperature=0.5", "scorer=likelihood"]
    plan, _ = planned(tiny[0], *settings)
    assert isinstance(plan.strategy, SelfConsistency)
    assert (plan.strategy.n, plan.strategy.sampling.temperature) == (3, 0.5)
    assert isinstance(plan.strategy.sampling.stop, tuple)
    assert isinstance(plan.scorer, LikelihoodScorer)
    assert plan.checkpoint.context_window == 512


def test_config_hash_covers_settings_that_can_change_a_row(tiny: list[str]) -> None:
    digest = planned(*tiny)[0].config_hash
    assert planned(*tiny, "limit=3", "concurrency=2")[0].config_hash == digest
    assert planned(*tiny, "seed=3")[0].config_hash != digest
    assert planned(*tiny, "search.n=3")[0].config_hash != digest


def test_wrong_engine_knob_is_named(tiny: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^engine\.kv_mib must be auto or an int >= 1, got 0$"):
        reason.load(*tiny, "engine.kv_mib=0")


def test_changed_setting_is_named_before_a_run_resumes() -> None:
    then = {"search": {"n": 4, "agg": "last"}, "limit": 3, "seed": 0}
    resume.require_same_settings(then, then | {"limit": None})
    with pytest.raises(ConfigError, match=r"resume: search\.n was 4, now 8; seed was 0, now 1$"):
        resume.require_same_settings(then, {"search": {"n": 8, "agg": "last"}, "limit": 3, "seed": 1})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["search=rebase"], "last"),
        (["search=mcts", "scorer=likelihood"], "last"),
        (["search=rebase", "scorer=expectation"], "min"),
        (["search=pdr", "scorer=expectation"], "min"),
        (["search=ets", "scorer=expectation", "search.agg_strategy=prod"], "prod"),
        (["search=ets", "scorer=expectation", "scorer.agg_strategy=mean"], "mean"),
    ],
)
def test_step_scores_are_aggregated_as_the_scorer_says_unless_the_search_does(
    overrides: list[str], expected: str
) -> None:
    spec = validate_settings(*compose_settings(overrides))
    assert spec.config["search"]["agg_strategy"] == expected


def test_wrong_aggregation_of_a_scorer_is_refused() -> None:
    with pytest.raises(ConfigError, match="agg_strategy must be"):
        validate_settings(*compose_settings(["search=rebase", "scorer=expectation", "scorer.agg_strategy=maximum"]))
