"""The base of all tables of the configuration: unknown keys are errors, values keep their type."""

from typing import Final

from pydantic import BaseModel, ConfigDict

MOST: Final = 2**31 - 1
"""The largest number of anything that is counted: what torch and files can hold."""

LARGE: Final = 1e30
"""The largest rate. A run may well diverge at it, but torch can convert it to float32."""


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
