"""Trains the bundled models from scratch, one resumable stage after another."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from reason.config import compose
from reason.config.errors import ConfigError
from reason.runs.command import handle_termination, report_config_errors
from reason.tasks.puzzles.thought import ThoughtStyle
from reason.training.draft_heads import DraftHeadRecipe
from reason.training.loop import TrainingRecipe
from reason.training.stages import STAGES, AccuracyTable, ModelShape, TrainingPlan, run_stage
from reason.training.td_lambda import ValueRecipe


def plan_from_settings(cfg: compose.Settings) -> TrainingPlan:
    """Returns the plan that the settings describe. Raises: ConfigError naming a wrong setting."""
    if unknown := set(cfg["stages"]) - set(STAGES):
        raise ConfigError(f"unknown stages {sorted(unknown)}; valid are {', '.join(STAGES)}")
    made_here = ("stages", "folder", "shapes", "recipes", "recipe", "thought_style", "heads", "values")
    known = {k: v for k, v in cfg.items() if k not in made_here}
    try:
        return TrainingPlan(
            folder=Path(cfg["folder"]),
            shapes={name: ModelShape(**shape) for name, shape in cfg["shapes"].items()},
            recipes={name: TrainingRecipe(**{**recipe, **cfg["recipe"]}) for name, recipe in cfg["recipes"].items()},
            thought_style=ThoughtStyle(**cfg["thought_style"]),
            heads=DraftHeadRecipe(**cfg["heads"]),
            values=ValueRecipe(**cfg["values"]),
            **known,
        )
    except (ValueError, TypeError) as error:  # a key that is no field is a TypeError
        raise ConfigError(str(error)) from error


def print_report(report: Mapping[str, AccuracyTable], console: Console) -> None:
    """Prints one row per family and difficulty."""
    for model, cells in report.items():
        names = list(next(iter(cells.values())))
        table = Table("family/difficulty", *names, title=model)
        for cell, values in cells.items():
            table.add_row(cell, *(f"{values[name]:.2f}" for name in names))
        console.print(table)


@hydra.main(config_path="pkg://reason.conf", config_name="train", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Runs the stages; a wrong setting ends it with one sentence."""
    with report_config_errors("train"):
        settings = compose.resolve_settings(cfg)
        plan = plan_from_settings(settings)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    figures: dict[str, Any] = {stage: run_stage(stage, plan) for stage in settings["stages"]}
    if "report" in figures:
        print_report(figures["report"], Console(width=220))
    print(json.dumps({stage: f for stage, f in figures.items() if stage != "report"}))


def run_program() -> None:
    """Runs `main`; settings that Hydra cannot read end without a traceback."""
    with handle_termination("train"):
        main()
