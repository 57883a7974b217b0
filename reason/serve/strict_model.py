"""The base class of request bodies: unknown fields are errors, and nothing is converted."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class StrictModel(BaseModel):
    """A model without undeclared fields, without conversion of types, without infinite or undefined numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def unsupported(message: str, **context: str) -> PydanticCustomError:
    """Returns the error of a field that asks for what this server cannot do; `field` in the context names another."""
    return PydanticCustomError("unsupported", "{message}", {"message": message, **context})
