"""Trains the bundled models from scratch, one resumable stage after another."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from reason.training.loop import TrainingRecipe
from reason.training.stages import STAGES, AccuracyTable, ModelShape, TrainingPlan, run_stage


def plan_from_settings(cfg: dict[str, Any]) -> TrainingPlan:
    """Returns the plan that the settings describe. Raises: ValueError or TypeError naming a wrong setting."""
    known = {k: v for k, v in cfg.items() if k not in ("stages", "folder", "shapes", "recipes", "recipe")}
    return TrainingPlan(
        folder=Path(cfg["folder"]),
        shapes={name: ModelShape(**shape) for name, shape in cfg["shapes"].items()},
        recipes={name: TrainingRecipe(**{**recipe, **cfg["recipe"]}) for name, recipe in cfg["recipes"].items()},
        **known,
    )


def print_report(report: Mapping[str, AccuracyTable], console: Console) -> None:
    """Prints one row per family and difficulty."""
    for model, cells in report.items():
        names = list(next(iter(cells.values())))
        table = Table("family/difficulty", *names, title=model)
        for cell, values in cells.items():
            table.add_row(cell, *(f"{values[name]:.2f}" for name in names))
        console.print(table)


@hydra.main(config_path="pkg://conf", config_name="train", version_base="1.3")
def main(cfg: DictConfig) -> None:
    settings: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    unknown = set(settings["stages"]) - set(STAGES)
    if unknown:
        raise SystemExit(f"unknown stages {sorted(unknown)}; valid are {', '.join(STAGES)}")
    plan = plan_from_settings(settings)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    figures: dict[str, Any] = {stage: run_stage(stage, plan) for stage in settings["stages"]}
    if "report" in figures:
        print_report(figures["report"], Console(width=220))
    print(json.dumps({stage: f for stage, f in figures.items() if stage != "report"}))


if __name__ == "__main__":
    main()
