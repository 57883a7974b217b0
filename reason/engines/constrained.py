"""Adds a JSON schema to the requests of one problem, for engines that write under one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from decoding.core import Generation, GenerationRequest, TokenGenerator


class ConstrainedGenerator:
    """Generates with `engine`, whose settings have `constrains_json`, what matches the schema, a JSON text."""

    def __init__(self, engine: TokenGenerator, json_schema: str) -> None:
        self._engine, self._json_schema = engine, json_schema

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """See `core.TokenGenerator`."""
        return await self._engine.generate([replace(each, json_schema=self._json_schema) for each in requests])
