"""Checks and completes SGLang's own settings for our algorithms, before a model loads. Imports no SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from decoding.sglang_plugin.settings import DRAFT_AGREE, TABLE_DECAY, PluginSettings
from decoding.validation import require_count

_MAX_RUNNING = 48
_NODES = 12
_STEPS, _TOPK = 4, 4
_THRESHOLD = 1.0  # SGLang's default: a draft token is accepted with its own probability


class SGLangArgs(Protocol):
    """The fields of SGLang's `ServerArgs` that are read or set here."""

    device: str
    pp_size: int
    page_size: int | None
    attention_backend: str | None
    enable_dp_attention: bool
    enable_mixed_chunk: bool
    enable_multi_layer_eagle: bool
    disable_overlap_schedule: bool
    max_running_requests: int | None
    speculative_draft_model_path: str | None
    speculative_num_draft_tokens: int | None
    speculative_num_steps: int | None
    speculative_eagle_topk: int | None
    speculative_ngram_max_bfs_breadth: int
    speculative_adaptive: bool
    speculative_use_rejection_sampling: bool
    speculative_accept_threshold_single: float
    speculative_accept_threshold_acc: float


def check_server_args(name: str, settings: PluginSettings, args: SGLangArgs) -> None:
    """Raises ValueError for what the algorithm `name` does not support, naming the flags."""
    if args.pp_size > 1 or args.enable_dp_attention:
        raise ValueError(f"{name} supports tensor parallelism, but neither pipelines nor data-parallel attention")
    _require_no_flags(
        name,
        {
            "--speculative-accept-threshold-single": args.speculative_accept_threshold_single != _THRESHOLD,
            "--speculative-accept-threshold-acc": args.speculative_accept_threshold_acc != _THRESHOLD,
            "--speculative-use-rejection-sampling": args.speculative_use_rejection_sampling,
        },
    )
    # here, not in the settings: flags are checked one by one as they are read
    if settings.table is None and settings.table_decay != TABLE_DECAY:
        raise ValueError("--reason-table-decay needs --reason-table")
    if args.speculative_num_draft_tokens is not None:
        least = 2 if settings.draft is None else 3
        require_count("--speculative-num-draft-tokens", args.speculative_num_draft_tokens, at_least=least)
    if settings.draft is None:
        _check_without_draft(name, settings, args)
        return
    if args.speculative_draft_model_path is None:
        raise ValueError(f"--reason-draft {settings.draft} needs --speculative-draft-model-path")
    # of one path there is no choice, and SGLang computes no probabilities
    require_count("--speculative-eagle-topk", args.speculative_eagle_topk or _TOPK, at_least=2)
    require_count("--speculative-num-steps", args.speculative_num_steps or _STEPS, at_least=2)
    _require_no_flags(
        f"--reason-draft {settings.draft}",
        {
            "--page-size": args.page_size not in (None, 1),
            "--enable-multi-layer-eagle": args.enable_multi_layer_eagle,
            "--speculative-adaptive": args.speculative_adaptive,
        },
    )


def _check_without_draft(name: str, settings: PluginSettings, args: SGLangArgs) -> None:
    if args.speculative_draft_model_path is not None:
        raise ValueError(
            f"--speculative-draft-model-path needs --reason-draft with {name}: it drafts without a model otherwise"
        )
    if settings.draft_agree != DRAFT_AGREE:
        raise ValueError("--reason-draft-agree needs --reason-draft")
    # SGLang's own n-grams refuse it too: other backends give wrong results for trees in pages of several tokens
    if args.page_size not in (None, 1) and args.attention_backend != "flashinfer":
        backend = "--attention-backend flashinfer"
        raise ValueError(f"{name} needs {backend} with --page-size {args.page_size}, got {args.attention_backend}")


def _require_no_flags(name: str, refused: Mapping[str, bool]) -> None:
    """Raises ValueError with the flags that are set, of those that `name` would ignore or break."""
    if wrong := [flag for flag, is_set in refused.items() if is_set]:
        raise ValueError(f"{name} does not work with {', '.join(wrong)}")


def set_server_args(settings: PluginSettings, args: SGLangArgs) -> None:
    """Sets what the algorithm needs and what the user has left open. *Mutates*."""
    # On a CPU there is no stream to overlap with. A merged tree needs the tokens of the round before.
    if args.device == "cpu" or settings.draft is not None:
        args.disable_overlap_schedule = True
    args.enable_mixed_chunk = False  # a round is either prompts or trees
    if args.max_running_requests is None:
        args.max_running_requests = _MAX_RUNNING
    if args.speculative_num_draft_tokens is None:
        args.speculative_num_draft_tokens = _NODES
    if settings.draft is None:
        args.speculative_eagle_topk = args.speculative_ngram_max_bfs_breadth
        args.speculative_num_steps = args.speculative_num_draft_tokens
        return
    args.speculative_eagle_topk = args.speculative_eagle_topk or _TOPK
    args.speculative_num_steps = args.speculative_num_steps or _STEPS
