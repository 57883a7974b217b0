"""From settings to the speculative parts of an engine: what cannot work together is refused before a model loads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reason.config.compose import complaints, make, only_ours
from reason.config.errors import ConfigError
from reason.models.checkpoint import find_model

if TYPE_CHECKING:  # these import torch, which a wrong setting elsewhere need not wait for
    from decoding.round import Speculation
    from decoding.speculation.drafters.source import Source
    from decoding.speculation.interfaces import Controller, Drafter
    from decoding.speculation.target_logits import Acceptance

GROUPS = ("speculation", "acceptance", "controller")
_MODELS = "reason.models."  # sources that load a model are made last


@dataclass(frozen=True)
class SpeculationPlan:
    """Checked settings. `lossless` says whether the output is distributed as plain decoding's."""

    node: Mapping[str, Any]
    acceptance: Acceptance
    controller: Controller

    @property
    def lossless(self) -> bool:
        return self.acceptance.lossless

    def parts(self, tokenizer: Any, writer: str) -> Speculation:
        """For an engine; `writer` is the path of the model drafted for, `tokenizer` its own.

        Raises: ConfigError.
        """
        from decoding.round import Speculation

        if "source" not in self.node:
            return Speculation(make("speculation", self.node), acceptance=self.acceptance)
        source = _source(self.node["source"], writer=tokenizer, writer_path=writer)
        controller = copy.deepcopy(self.controller)  # it learns what its own engine's rounds cost
        return Speculation(_drafter(self.node, source), controller, self.acceptance)

    @property
    def loads_a_model(self) -> bool:
        """Whether a second model guesses the tokens."""
        return "source" in self.node and any(map(_loads_a_model, _own_sources(self.node["source"])))


def check(config: Mapping[str, Any]) -> SpeculationPlan:
    """Everything that can be known without a model. Raises: ConfigError naming the setting."""
    from decoding.speculation.acceptance.compatibility import check_pairing

    acceptance: Acceptance = make("acceptance", config["acceptance"])
    controller: Controller = make("controller", config["controller"])
    node = dict(config["speculation"])
    only_ours("speculation", node)
    if "source" not in node:
        make("speculation", node)
        return SpeculationPlan(node, acceptance, controller)
    sources = [None if _loads_a_model(own) else make("speculation.source", own) for own in _own_sources(node["source"])]
    for own in filter(_loads_a_model, _own_sources(node["source"])):
        with complaints("speculation.source"):
            find_model(own["path"], key="speculation.source.path")
    ranks_only = len(sources) == 1 and sources[0] is not None and not sources[0].has_probabilities
    if node.get("draw") is None:
        node["draw"] = "likely" if ranks_only else acceptance.draws[0]
    with complaints():
        check_pairing(acceptance, node["draw"])
    if node["draw"] in ("without_replacement", "iid") and not controller.fills_template:
        raise ConfigError(
            f"draw={node['draw']} may not be pruned by probability; choose controller=template, chain or goodput"
        )
    if None not in sources:
        _drafter(node, _source(node["source"]))
    return SpeculationPlan(node, acceptance, controller)


def _drafter(node: Mapping[str, Any], source: Source) -> Drafter:
    from decoding.speculation.drafters.tree_drafter import TreeDrafter

    # Not through Hydra, which would turn the source, a dataclass, into a config.
    knobs = {key: value for key, value in node.items() if key not in ("_target_", "source")}
    with complaints("speculation"):
        try:
            return TreeDrafter(source, **knobs)
        except TypeError as error:
            raise ConfigError(f"speculation: {error}") from error


def _source(node: Mapping[str, Any], **writer: Any) -> Source:
    from decoding.speculation.drafters.hybrid import Hybrid

    if "sources" in node:
        knobs = {key: value for key, value in node.items() if key not in ("_target_", "sources")}
        with complaints("speculation.source"):
            return Hybrid(tuple(_source(own, **writer) for own in node["sources"]), **knobs)
    source: Source = make("speculation.source", node, **(writer if _loads_a_model(node) else {}))
    return source


def _own_sources(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(node.get("sources", [node]))


def _loads_a_model(node: Mapping[str, Any]) -> bool:
    return str(node.get("_target_", "")).startswith(_MODELS)
