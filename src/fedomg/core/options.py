"""The base of all tables of the configuration: unknown keys are errors, values keep their type."""

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
