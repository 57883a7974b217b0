"""From settings to the speculative parts of an engine; rejects incompatible settings before a model loads."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from decoding.speculation.drafters.table_memory import TableMemory, make_origin
from decoding.speculation.saving import SavingSchedule
from decoding.validation import require_share
from reason.config.compose import as_config_error, check_trusted_targets, instantiate, load_target
from reason.config.errors import ConfigError, rejected_setting
from reason.models.checkpoint import Checkpoint, find_model
from reason.models.tokenizer import PretrainedTokenizer
from reason.scorers.text import encode_text

if TYPE_CHECKING:  # these import torch, which the error for a wrong setting elsewhere need not wait for
    from decoding.model.backend import Backend
    from decoding.round import Speculation
    from decoding.speculation.draft import DraftSampling
    from decoding.speculation.drafters.ngram_table import NGramTable
    from decoding.speculation.drafters.source import DraftSource
    from decoding.speculation.interfaces import AcceptanceRule, Controller, Drafter

GROUPS = ("speculation", "acceptance", "controller")
Settings = Mapping[str, Any]

SAVING_S = 60.0  # between savings of what the drafter has learned: no more is lost when a run is killed


@runtime_checkable
class HasHead(Protocol):
    """Acceptance rule with a head that reads the target's hidden states, and so belongs to one model."""

    def require_hidden_size(self, size: int) -> None:
        """Raises: ValueError where the head is for hidden states of another size."""
        ...


@dataclass(frozen=True)
class SpeculationSpec:
    """Validated settings of speculation. `memory` keeps what the drafter learns, where `remember` is set."""

    node: Settings
    acceptance: AcceptanceRule
    controller: Controller
    memory: TableMemory | None = None

    @property
    def lossless(self) -> bool:
        """Whether the output is distributed as plain decoding's."""
        return self.acceptance.lossless

    @property
    def lossy(self) -> str | None:
        """The setting that changes the distribution of the output, such as "acceptance=greedy_match"; None for none.

        Without drafts no acceptance rule is used.
        """
        from decoding.speculation.acceptance.verify import rule_name

        return None if self.lossless or not self.drafts_tokens else f"acceptance={rule_name(self.acceptance)}"

    @property
    def drafts_tokens(self) -> bool:
        """Whether rounds have drafts at all, which `speculation=off` does not."""
        from decoding.speculation.drafters.none import NoDraft

        return "source" in self.node or load_target(self.node) is not NoDraft

    @property
    def loads_a_model(self) -> bool:
        """Whether a draft model is loaded beside the target model."""
        return "source" in self.node and any(map(_needs_model, _list_sources(self.node["source"])))

    def validate_target(self, checkpoint: Checkpoint) -> None:
        """Checks what is known of the target model before it loads. Raises: ConfigError for a head of another one."""
        size = checkpoint.config.get("hidden_size")
        if self.drafts_tokens and isinstance(size, int) and isinstance(self.acceptance, HasHead):
            with as_config_error():
                self.acceptance.require_hidden_size(size)

    def for_small_model(self) -> SpeculationSpec:
        """Returns the settings for a router's small model, which remembers nothing: a folder keeps the tables of one
        model. A rule with a head for the target model gives way to coupled acceptance."""
        from decoding.speculation.acceptance.coupled import Coupled

        acceptance = Coupled() if isinstance(self.acceptance, HasHead) else self.acceptance
        return replace(self, memory=None, acceptance=acceptance)

    def make_speculation(
        self, tokenizer: PretrainedTokenizer | None, target_path: str, target_backend: Backend | None = None
    ) -> Speculation:
        """Returns new parts for one engine, whose model has this tokenizer and path.

        `target_backend` is the loaded model, for a source that drafts with it.

        Raises: ConfigError.
        """
        from decoding.round import Speculation

        if not self.drafts_tokens:  # tokens are the target's own: no rule decides about any
            return Speculation(instantiate("speculation", self.node))
        saving: SavingSchedule | None = None
        if "source" in self.node:
            model = {"target_tokenizer": tokenizer, "target_path": target_path, "target_backend": target_backend}
            source = _make_source(self.node["source"], model)
            drafter = _make_tree_drafter(self.node, source)
            if self.memory is not None:
                table = _find_table(source)
                origin = make_origin(target_path, {} if tokenizer is None else tokenizer.get_vocab())
                try:
                    save = self.memory.open_table(table, origin).save
                except ValueError as error:
                    raise ConfigError(f"speculation.remember: {error}") from error
                saving = SavingSchedule(save, time.monotonic(), SAVING_S)
        else:
            drafter = instantiate("speculation", self.node)
        drafter = self._add_check(drafter, tokenizer)
        controller = copy.deepcopy(self.controller)  # it learns the cost of its own engine's rounds
        return Speculation(drafter, controller, self.acceptance, saving)

    def _add_check(self, drafter: Drafter, tokenizer: PretrainedTokenizer | None) -> Drafter:
        """Returns the drafter that a rule reads twice, if this is one. Raises: ConfigError without a tokenizer."""
        from decoding.speculation.acceptance.reflective import ReflectingDrafter, Reflective

        if not isinstance(self.acceptance, Reflective):
            return drafter
        if tokenizer is None:
            raise ConfigError("acceptance=reflective puts in a text, which needs the target's tokenizer")
        return ReflectingDrafter(drafter, encode_text(tokenizer, self.acceptance.prompt))


def validate_speculation(config: Settings) -> SpeculationSpec:
    """Checks everything that is known without a model. Raises: ConfigError naming the setting."""
    from decoding.speculation.acceptance.verify import check_sampling

    acceptance: AcceptanceRule = instantiate("acceptance", config["acceptance"])
    controller: Controller = instantiate("controller", config["controller"])
    node = dict(config["speculation"])
    folder, decay = node.pop("remember", None), node.pop("remember_decay", 1.0)
    try:
        require_share("remember_decay", decay, above_zero=True)
        memory = None if folder is None else TableMemory(Path(folder), decay)
    except ValueError as error:
        raise ConfigError(rejected_setting("speculation", error, ("remember", "remember_decay"))) from error
    check_trusted_targets("speculation", node)
    if "source" not in node:
        instantiate("speculation", node)
        return SpeculationSpec(node, acceptance, controller)
    from decoding.compiled import explain_absent_numba

    if (reason := explain_absent_numba()) is not None:
        raise ConfigError(
            f"speculation cannot run, whose loops are compiled: {reason}. Without it, set speculation=off"
        )
    # Sources with a model are constructed last, by `make_speculation`; here only their checkpoint is looked up.
    sources: list[DraftSource | None] = []
    for settings in _list_sources(node["source"]):
        if not _needs_model(settings):
            sources.append(instantiate("speculation.source", settings))
            continue
        sources.append(None)
        if "path" in settings:
            with as_config_error("speculation.source"):
                find_model(settings["path"], key="speculation.source.path")
    only_ranks = len(sources) == 1 and sources[0] is not None and not sources[0].has_probabilities
    if node.get("draw") is None:
        node["draw"] = "likely" if only_ranks else acceptance.supported_sampling[0]
    with as_config_error():
        check_sampling(acceptance, node["draw"])
    _check_shape(node["draw"], controller)
    source = _make_source(node["source"], None)
    _make_tree_drafter(node, source)
    if memory is not None:
        _find_table(source)
    return SpeculationSpec(node, acceptance, controller, memory)


def _check_shape(draw: DraftSampling, controller: Controller) -> None:
    """Raises: ConfigError where the controller would choose among drawn tokens by their probability."""
    from decoding.speculation.controllers.fixed import FixedController
    from decoding.speculation.draft import RANDOM_SAMPLING, SELF_SHAPED

    if draw in SELF_SHAPED:
        if not isinstance(controller, FixedController):
            raise ConfigError(
                f"draw={draw} has a shape of its own and needs a number of nodes; choose controller=fixed"
            )
    elif draw in RANDOM_SAMPLING and not controller.uses_template:
        raise ConfigError(
            f"draw={draw} may not be pruned by probability; "
            "choose controller=template, branching, delayed, delayed_selector, chain or goodput"
        )


def _find_table(source: DraftSource) -> NGramTable:
    """Returns the table of a source. Raises: ConfigError for a source without one."""
    from decoding.speculation.drafters.stand import Stand

    if not isinstance(source, Stand):
        raise ConfigError(
            f"speculation.remember keeps an n-gram table, and {type(source).__name__} has none; "
            "choose speculation=stand"
        )
    return source.table


def _make_tree_drafter(node: Settings, source: DraftSource) -> Drafter:
    # Not through Hydra, which would turn the source, a dataclass, into a config.
    settings = {key: value for key, value in node.items() if key not in ("_target_", "source")}
    with as_config_error("speculation"):
        try:
            drafter: Drafter = load_target(node)(source, **settings)
        except TypeError as error:
            raise ConfigError(f"speculation: {error}") from error
    return drafter


class UnloadedSource:
    """Takes the place of a draft model while the settings of the drafter around it are validated."""

    has_probabilities = True


def _make_source(node: Settings, model: Settings | None) -> DraftSource:
    """Returns a source; `model` are the arguments of one that loads a model, None leaves the model unloaded."""
    if "sources" in node:
        settings = {key: value for key, value in node.items() if key not in ("_target_", "sources")}
        with as_config_error("speculation.source"):
            sources = tuple(_make_source(one, model) for one in node["sources"])
            combined: DraftSource = load_target(node)(sources, **settings)
            return combined
    if not _needs_model(node):
        model = {}
    if model is None:
        with as_config_error("speculation.source"):
            validate = getattr(load_target(node), "validate", None)  # a plug-in need not have it
            if validate is not None:
                validate(node)
        unloaded: Any = UnloadedSource()
        return cast("DraftSource", unloaded)
    if not getattr(load_target(node), "needs_target", False):
        model = {name: value for name, value in model.items() if name != "target_backend"}
    source: DraftSource = instantiate("speculation.source", node, **model)
    return source


def _list_sources(node: Settings) -> Sequence[Settings]:
    return list(node.get("sources", [node]))


def _needs_model(node: Settings) -> bool:
    """Whether the class of a source declares `needs_model`; False for a target that does not exist."""
    check_trusted_targets("speculation.source", node)
    with as_config_error("speculation.source"):
        return bool(getattr(load_target(node), "needs_model", False))
