"""The searches of `conf/search/`, for tests of properties of every search."""

from __future__ import annotations

from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from tests.support.paths import CONF


def option_names(group: str) -> list[str]:
    """The options of a group of `conf/`; yamls that others include begin with an underscore and are left out.

    So is `search=auto`, which is one of the other searches.
    """
    names = sorted(file.stem for file in (CONF / group).glob("*.yaml") if not file.stem.startswith("_"))
    return [name for name in names if (group, name) != ("search", "auto")]


def load_search_yaml(name: str) -> DictConfig:
    """One yaml of `conf/search/` as it is written, without what it includes."""
    settings = OmegaConf.load(CONF / "search" / f"{name}.yaml")
    assert isinstance(settings, DictConfig)
    return settings


def search_classes(base: type = object) -> dict[str, Any]:
    """The class of each search below `base`, by the name of its yaml."""
    classes = {name: get_class(load_search_yaml(name)["_target_"]) for name in option_names("search")}
    return {name: named_class for name, named_class in classes.items() if issubclass(named_class, base)}
