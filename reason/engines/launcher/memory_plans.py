"""Plans the memory of all servers before any starts, and refuses what cannot fit."""

from __future__ import annotations

from collections.abc import Mapping

from reason.config.errors import ConfigError
from reason.engines.launcher.memory import (
    DEFAULT_SHARE,
    MemoryPlan,
    ModelSize,
    read_gpu_bytes,
    read_machine_bytes,
)
from reason.engines.launcher.resources import find_memory_share
from reason.engines.launcher.settings import ListenerSettings, ModelServerSettings

CPU_TOKENS = 16_384
_FLOAT32 = 4  # servers without a GPU compute in it


def plan_memory(
    sections: Mapping[str, ListenerSettings],
    configs: Mapping[str, Mapping[str, object]],
    draft_configs: Mapping[str, Mapping[str, object]],
    *,
    gpu_gib: float | None,
) -> tuple[str, ...]:
    """Returns a line for each model; `gpu_gib` is the memory of a GPU, None asks the driver.

    A draft model counts in the line of its target: its weights are beside the target's, and each token has KV in both.
    A model whose config.json does not tell its size, and GPUs that cannot be asked, have a line that says so.
    Raises: ConfigError naming the setting, where weights or the requested tokens do not fit.
    """
    lines: list[str] = []
    free = read_machine_bytes()
    models = {name: section for name, section in sections.items() if isinstance(section, ModelServerSettings)}
    driver = read_gpu_bytes() if gpu_gib is None and any(section.gpus for section in models.values()) else None
    for name, section in models.items():
        item_bytes = None if section.gpus else _FLOAT32
        size = ModelSize.from_config(configs[name], item_bytes)
        if name in draft_configs:
            draft = ModelSize.from_config(draft_configs[name], item_bytes)
            size = None if size is None or draft is None else size.with_draft(draft)
        workers = f"{section.workers} workers, each: " if section.workers > 1 else ""
        if size is None:
            with_draft = ", or that of its draft model," if name in draft_configs else ""
            lines.append(f"{name}: its config.json{with_draft} does not tell how large it is")
            continue
        if section.gpus:
            device_bytes = _find_gpu_bytes(name, section, gpu_gib, driver)
            if device_bytes is None:
                each = size.weights / section.tp / 1e9
                lines.append(
                    f"{name}: {workers}{each:.2f} GB of weights on each GPU, {size.kv / 1000:.1f} kB of KV per token; "
                    "the memory of the GPUs is not known (serve_models.gpu_gib)"
                )
                continue
            share = find_memory_share(section) or DEFAULT_SHARE
            plan = MemoryPlan(size, section.tp, int(device_bytes * share), section.tokens)
        elif free is None:
            continue
        else:
            plan = MemoryPlan(size, 1, free // section.workers, section.tokens or CPU_TOKENS, device="machine")
        _require_fit(plan, name)
        lines.append(f"{name}: {workers}{plan.describe()}")
        if not section.gpus and free is not None:  # the next ones start beside it
            free -= section.workers * (size.weights + plan.pool * size.kv)
    return tuple(lines)


def _require_fit(plan: MemoryPlan, name: str) -> None:
    """Raises ConfigError naming the setting."""
    try:
        plan.require_fit(name)
    except ValueError as error:
        setting = "tokens" if plan.left > 0 and plan.tokens else "gpus" if plan.device == "GPU" else "path"
        raise ConfigError(f"{name}.{setting}: {error}") from None


def _find_gpu_bytes(
    name: str, section: ModelServerSettings, gpu_gib: float | None, driver: Mapping[int, int] | None
) -> int | None:
    """Returns the memory of the smallest GPU of a section; None where it is not known. Raises: ConfigError."""
    if gpu_gib is not None:
        return int(gpu_gib * 2**30)
    if driver is None:
        return None
    for gpu in section.gpus:
        if gpu not in driver:
            raise ConfigError(f"{name}.gpus: there is no GPU {gpu} here, there are {sorted(driver)}")
    return min(driver[gpu] for gpu in section.gpus)
