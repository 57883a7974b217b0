"""The plugin's own settings: flags of SGLang's command, handed to its other processes through the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from decoding.validation import require_choice, require_share

ControllerName = Literal["adaptive", "fixed"]
CONTROLLERS = ("adaptive", "fixed")
DraftName = Literal["standalone", "eagle", "eagle3"]
DRAFTS = ("standalone", "eagle", "eagle3")
DRAFT_AGREE = 0.0
TABLE_DECAY = 1.0
VARIABLES = {
    "--reason-controller": "REASON_CONTROLLER",
    "--reason-draft": "REASON_DRAFT",
    "--reason-draft-agree": "REASON_DRAFT_AGREE",
    "--reason-table": "REASON_TABLE",
    "--reason-table-decay": "REASON_TABLE_DECAY",
}
"""Where the value of each flag is kept. `sglang.Engine`, which has no command, reads the environment alone."""


@dataclass(frozen=True)
class PluginSettings:
    """Settings of `--speculative-algorithm REASON` and `REASON_RECURSIVE`.

    controller   adaptive: as many draft nodes as raise tokens per second, 0 too; fixed: always
                 `--speculative-num-draft-tokens` - 1, as with `draft`; None: fixed with `draft`, else adaptive
    draft        how SGLang drafts with `--speculative-draft-model-path`, whose tree is merged with n-grams: standalone
                 (a small model), eagle (a head, MTP too) or eagle3; None: n-grams alone
    draft_agree  minimum probability that the draft model gives to a token of an n-gram, where it has drafted; 0: any
    table        folder from which the server reads what was learned, and in which it leaves what it learns
    table_decay  weight of what was learned with the weights before, once for each change of weights; below 1 tables of
                 other weights with the same vocabulary are read too

    Raises: ValueError with the flag, its valid values and the value given.
    """

    controller: ControllerName | None = None
    draft: DraftName | None = None
    draft_agree: float = DRAFT_AGREE
    table: Path | None = None
    table_decay: float = TABLE_DECAY

    def __post_init__(self) -> None:
        if self.controller is None:
            object.__setattr__(self, "controller", "adaptive" if self.draft is None else "fixed")
        require_choice("--reason-controller", self.controller, CONTROLLERS)
        if self.draft is not None:
            require_choice("--reason-draft", self.draft, DRAFTS)
            if self.controller != "fixed":
                raise ValueError(f"--reason-controller must be fixed with --reason-draft, got {self.controller}")
        require_share("--reason-draft-agree", self.draft_agree)
        require_share("--reason-table-decay", self.table_decay, above_zero=True)
        if self.table is not None and self.table.exists() and not self.table.is_dir():
            raise ValueError(f"--reason-table must be a folder, {self.table} is a file")

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> PluginSettings:
        """Returns the settings that `add_flags` has left, or that the user has set. Raises: ValueError."""
        controller, draft, agree, table, decay = (variables.get(variable) for variable in VARIABLES.values())
        return cls(
            controller=cast(ControllerName, controller) if controller else None,
            draft=cast(DraftName, draft) if draft else None,
            draft_agree=_to_number("--reason-draft-agree", "[0, 1]", agree) if agree else DRAFT_AGREE,
            table=Path(table) if table else None,
            table_decay=_to_number("--reason-table-decay", "(0, 1]", decay) if decay else TABLE_DECAY,
        )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags to SGLang's parser. *Mutates* it."""
    group = parser.add_argument_group("reason", "settings of --speculative-algorithm REASON and REASON_RECURSIVE")
    helps = (
        "adaptive (default): as many draft nodes as raise tokens per second, none too; fixed: always all",
        "standalone, eagle or eagle3: merge the trees of --speculative-draft-model-path with n-grams",
        "drop tokens of n-grams to which the draft model gives a lower probability than this, in [0, 1]",
        "folder: read what earlier servers have learned, and leave what this one learns",
        "weight of what was learned with the weights before, in (0, 1]; below 1 other checkpoints' tables are read",
    )
    for flag, text in zip(VARIABLES, helps, strict=True):
        group.add_argument(flag, action=_KeepInEnvironment, help=text)


class _KeepInEnvironment(argparse.Action):
    """Keeps the value of a flag where the other processes of the server find it; ends the program if it is wrong."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        del namespace, option_string
        variable = VARIABLES[self.option_strings[0]]
        try:
            PluginSettings.from_environment({variable: str(values)})
        except ValueError as error:
            parser.error(str(error))
        os.environ[variable] = str(values)


def _to_number(flag: str, valid: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{flag} must be a number in {valid}, got {text}") from None
