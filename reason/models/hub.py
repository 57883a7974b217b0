"""Looks up models on the Hugging Face hub, with an answer within two seconds where it cannot be reached."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

from reason.config.errors import ConfigError

PROBE_TIMEOUT_S = 1.5


def is_hub_reachable() -> bool:
    """Returns whether the hub answers at all, through any proxy that is set, within `PROBE_TIMEOUT_S`."""
    switches = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
    if any(value in ("1", "ON", "YES", "TRUE") for value in switches):
        return False
    from huggingface_hub.constants import ENDPOINT

    answered = threading.Event()

    def probe() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=PROBE_TIMEOUT_S).close()
        except urllib.error.HTTPError:
            pass  # an answer
        except (OSError, ValueError):
            return
        answered.set()

    thread = threading.Thread(target=probe, daemon=True)  # a name lookup may outlast any timeout
    thread.start()
    thread.join(PROBE_TIMEOUT_S)
    return answered.is_set()


def locate_on_hub(hub_id: str, key: str) -> tuple[str, Path]:
    """Returns the source to load a hub id from, and its config.json.

    The source is the id, or the folder of the local cache while the hub does not answer: given the id, the hub's client
    would retry for half a minute per file, cached or not.

    `key` is the setting that errors name. Raises: ConfigError in one sentence.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
        if is_hub_reachable():
            return hub_id, Path(cached if isinstance(cached, str) else hf_hub_download(hub_id, "config.json"))
    except (OSError, ValueError) as error:  # every error of the hub's client is one of these
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{key}={hub_id}: no such folder, and the hub did not give it ({first_line})") from error
    if isinstance(cached, str):
        return str(Path(cached).parent), Path(cached)
    raise ConfigError(
        f"{key}={hub_id}: no such folder, not in the local cache, and the hub cannot be reached; "
        "give the folder of a downloaded model"
    )


def fetch_hub_file(hub_id: str, name: str) -> Path | None:
    """Returns a file of the repository, downloaded where the cache lacks it; None if the repository has none.

    Raises: OSError if neither hub nor cache answers.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        return Path(hf_hub_download(hub_id, name))
    except RemoteEntryNotFoundError:
        return None
