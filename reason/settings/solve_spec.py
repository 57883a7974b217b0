"""The validated settings of a solver, and how a solver is loaded from them: servers first, models last."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from decoding.compiling_process import start_compiling_drafts
from decoding.core import Engine
from decoding.kv.eviction.policy import EvictionPolicy
from reason.config.compose import Settings, as_config_error
from reason.config.errors import ConfigError
from reason.config.versions import collect_versions
from reason.engines.cost_store import count_cores
from reason.engines.spec import EngineSpec
from reason.engines.speculation import SpeculationSpec
from reason.models.checkpoint import Checkpoint, eos_ids, load_tokenizer
from reason.models.loading import announce, paused_collector
from reason.prompt import Prompt, PromptFormat
from reason.routing.judge_spec import JudgeSpec
from reason.routing.spec import RouterSpec
from reason.runs.allocation import SampleAllocation
from reason.runs.resume import flatten_settings, hash_settings
from reason.scorers.base import LoadableEmbedder, Scorer
from reason.scorers.judge_model import AskingScorer, JudgeModel
from reason.scorers.thought_verifier import YES_NO, ThoughtVerifier
from reason.solver import Solver
from reason.tasks.base import Task
from reason.thinking import ThinkingFormat
from reason.trust import TrustRule
from search.probes import EarlyExit
from search.steps import StepRule
from search.strategy import Budget, Strategy

COMPARED = ("search", "step", "early_exit", "eviction", "budget")
"""Groups whose settings are in every row."""


@dataclass(frozen=True)
class SolveSpec:
    """Validated settings of a solver: every object exists except the models.

    names           the options by group, for result rows
    lossy_settings  settings under which text is not distributed as the target model's, such as `router=arbitrage`
    """

    strategy: Strategy
    scorer: Scorer
    embedder: LoadableEmbedder | None
    prompt_format: PromptFormat
    step_rule: StepRule | None
    thinking: ThinkingFormat | None
    early_exit: EarlyExit | None
    eviction: EvictionPolicy | None
    checkpoint: Checkpoint
    engine: EngineSpec
    budget: Budget
    speculation: SpeculationSpec
    routing: RouterSpec | None
    judge: JudgeSpec | None
    verifier: JudgeSpec | None
    allocation: SampleAllocation | None
    names: dict[str, str]
    lossy_settings: tuple[str, ...]
    config: Settings

    @property
    def config_hash(self) -> str:
        """A hash of the settings that can change a row: equal hashes mean that rows may be compared."""
        return hash_settings(self.config)

    def run_metadata(self, task: Task, stands_in_for: str | None) -> dict[str, object]:
        """Returns what every row repeats of its run: options, settings and their hash, versions, and what is lossy.

        The settings are those that runs are compared by; `run.json` has all.
        """
        names = {"task": task.name} | ({"stands_in_for": stands_in_for} if stands_in_for else {}) | self.names
        lossy = {"lossy": ", ".join(self.lossy_settings)} if self.lossy_settings else {}
        compared = COMPARED if self.allocation is None else (*COMPARED, "allocation")
        return {
            **names,
            **lossy,
            "seed": self.config["seed"],
            "config": self.config_hash,
            "settings": {
                key: value
                # a run of the last release has no eviction
                for key, value in flatten_settings({key: self.config.get(key, {}) for key in compared}).items()
                if not key.endswith("._target_") and ".templates." not in key
            },
            "versions": collect_versions(),
        }

    def load_solver(
        self, task: Task | None = None, *, allocates: bool = False, waits_for_drafts: bool = True
    ) -> Solver:
        """Loads the models and returns the solver; `task` finds answers in texts.

        `allocates` says that the caller divides samples among problems as `allocation` says; a solver alone does not.
        Without `waits_for_drafts`, the first start on a machine may decode without drafts until they are compiled.

        Raises: ConfigError.
        """
        if self.allocation is not None and not allocates:
            raise ConfigError(
                "allocation.samples is divided among the problems of a run, by `reason solve` and `reason bench "
                "evaluate`; leave it null here"
            )
        with paused_collector():
            return self._load_solver(task, waits_for_drafts)

    def _load_solver(self, task: Task | None, waits_for_drafts: bool) -> Solver:
        source = self.checkpoint.source
        # Servers first: it takes a second to know that one is down, and minutes to load a model for nothing.
        self.engine.ping()
        if self.routing is not None:
            self.routing.small.ping()
        for judge in (self.judge, self.verifier):
            if judge is not None and judge.small is not None:
                judge.small.ping()
        if self.speculation.drafts_tokens:
            start_compiling_drafts(count_cores(), is_awaited=waits_for_drafts)
        with announce("loading the tokenizer"), as_config_error("model.path"):
            tokenizer = load_tokenizer(source)
        with as_config_error("model.prompt"):
            tags = () if self.thinking is None else self.thinking.tags
            prompt = Prompt(self.prompt_format, tokenizer, tags)
        if self.verifier is not None:
            self.verifier.require_words(prompt, YES_NO, "early_exit.verifier", "early_exit.verifier")
        elif self.early_exit is not None:
            self._validate_probe(self.early_exit, len(prompt.encode_continuation(self.early_exit.probe)))
        loading = announce(f"loading scorer {self.names['scorer']}") if self.scorer.gives_scores else nullcontext()
        with loading, as_config_error("scorer"):
            self.scorer.load(writer=tokenizer)
        if self.embedder is not None:
            with as_config_error("embedder"):
                self.embedder.load()
        target = self.engine.open_engine(
            self.checkpoint,
            tokenizer=tokenizer,
            speculation=self.speculation.make_speculation,
            eviction=self.eviction,
        )
        router = None
        if self.routing is not None:
            router = self.routing.open_routed_engine(
                target,
                tokenizer=tokenizer,
                prompt=prompt,
                # The small model does not draft tokens for itself where it already drafts them for the large one.
                speculation=None
                if self.speculation.loads_a_model
                else self.speculation.for_small_model().make_speculation,
            )
        judge_model = self._give_judge_its_model(target, prompt)
        return Solver(
            strategy=self.strategy,
            engine=target,
            router=router,
            scorer=self.scorer,
            scorer_timeout=self.config["scorer_timeout"],
            scorer_reads=self.config.get("scorer_reads", "thought"),  # a run of the last release has neither of the two
            scorer_window=self.config.get("scorer_window", 4096),
            embedder=self.embedder,
            prompt=prompt,
            step_rule=self.step_rule,
            budget=self.budget,
            seed=self.config["seed"],
            concurrency=self.config["concurrency"],
            context_window=self.checkpoint.context_window,
            end_tokens=eos_ids(source, tokenizer),
            thinking=self.thinking,
            ends_thoughts=self.engine.settings.continues_text,
            early_exit=self.early_exit,
            verifier=self._open_verifier(target, prompt, judge_model),
            trust=self._make_trust(),
            **({} if task is None else {"find_answer": task.find}),
        )

    def join_solver(self, solver: Solver) -> Solver:
        """Returns a solver that shares engine and models with `solver` and has this spec's scorer, which loads none.

        Raises: ConfigError where the scorer cannot ask this model.
        """
        self._give_judge_its_model(solver.engine, solver.prompt)
        return solver.with_options(scorer=self.scorer, trust=self._make_trust())

    def _give_judge_its_model(self, target: Engine, prompt: Prompt) -> JudgeModel | None:
        if self.judge is None or not isinstance(self.scorer, AskingScorer):
            return None
        with as_config_error("scorer"):
            model = self.judge.open_judge(target, self.engine, prompt)
            self.scorer.use_model(model)
            return model

    def _open_verifier(self, target: Engine, prompt: Prompt, judge_model: JudgeModel | None) -> ThoughtVerifier | None:
        """Returns the model that reads thoughts; a small one that the scorer asks too is loaded once."""
        if self.verifier is None:
            return None
        is_small = self.verifier.small is not None
        if judge_model is not None and is_small and self.judge is not None and self.judge.small is not None:
            return ThoughtVerifier(model=judge_model, is_small=True)
        model = self.verifier.open_judge(target, self.engine, prompt)
        return ThoughtVerifier(model=model, is_small=is_small)

    def _make_trust(self) -> TrustRule:
        # a run of the last release has no such setting
        return TrustRule(self.config.get("trusted_score"), getattr(self.scorer, "judges_solutions", False))

    def _validate_probe(self, rule: EarlyExit, num_tokens: int) -> None:
        """Raises ConfigError where a probe of so many tokens, with its answer, does not fit the model's window."""
        window = self.checkpoint.context_window
        if window is not None and num_tokens + rule.probe_tokens >= window:
            raise ConfigError(
                f"early_exit.probe has {num_tokens} tokens, and with early_exit.probe_tokens={rule.probe_tokens} for "
                f"the answer it does not fit the model's window of {window}"
            )
