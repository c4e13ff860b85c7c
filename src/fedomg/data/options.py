"""The `[data]` table: where a data set lies and how it is dealt to clients."""

from pydantic import Field

from fedomg.core.options import Options


class DataOptions(Options):
    root: str | None = Field(None, description="the folder of the data set, where it is not part of the package")
    size: int = Field(64, ge=1, description="side that images of a folder are resized to, in pixels")
    clients_per_domain: int = Field(1, ge=1, description="clients that a source domain is dealt to")
    validation: float = Field(0.1, ge=0, lt=1, description="share of a client's training data kept for validation")
    test: float = Field(0.1, ge=0, lt=1, description="share kept for tests where the data set fixes none")
    points: int = Field(500, ge=2, description="points a domain, in rect4")
    shift: bool = Field(True, description="rect4: domains differ; false deals the pooled points at random")
