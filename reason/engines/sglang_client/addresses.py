"""What the settings of all engines made of servers have in common: addresses, times and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from decoding.validation import is_count


def addresses(urls: object, *, example: str, path: bool) -> tuple[str, ...]:
    """One address or several, without trailing slashes; `path` says whether they may have one.

    >>> addresses("http://localhost:8000/v1/", example="http://host:8000/v1", path=True)
    ('http://localhost:8000/v1',)

    Raises: ValueError.
    """
    given = [urls] if isinstance(urls, str) else urls
    if not isinstance(given, Sequence) or not given:
        raise ValueError(f"urls must be one or more addresses, got {urls!r}")
    found = tuple(_address(url, example, path) for url in given)
    if len(set(found)) < len(found):
        raise ValueError(f"urls must differ, got {', '.join(found)}")
    return found


def require_seconds(settings: Mapping[str, object]) -> None:
    """Raises: ValueError naming the first that is no time."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{name} must be a number of seconds > 0, got {value!r}")


def require_counts(settings: Mapping[str, object]) -> None:
    """Raises: ValueError naming the first that is not at least 1."""
    for name, value in settings.items():
        if not is_count(value, at_least=1):
            raise ValueError(f"{name} must be an int >= 1, got {value!r}")


def require_packages() -> None:
    """Raises: ValueError naming the package that is missing."""
    try:
        import httpx2  # noqa: F401
        import tenacity  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed; pip install 'reason-search[sglang]'") from error


def _address(url: object, example: str, path: bool) -> str:
    wanted = f"urls must be addresses like {example}"
    if not isinstance(url, str):
        raise ValueError(f"{wanted}, got {url!r}")
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        raise ValueError(f"{wanted}, got {url!r}") from None
    if parts.username is not None or parts.password is not None:  # not repeated: it is a secret
        raise ValueError(f"{wanted}, without a name or a password in them")
    if not whole or (parts.path.strip("/") and not path) or parts.query or parts.fragment:
        raise ValueError(f"{wanted}, got {url!r}")
    return url.rstrip("/")
