"""The `[data]` table: where a data set lies and how it is dealt to clients."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from fedomg.core.errors import UserError
from fedomg.core.options import MOST, Options

Partition = Literal["domain", "iid", "dirichlet", "pathological", "domain-label", "domain-mix"]
Augmentation = Literal["none", "feddg-ga", "domainbed", "stablefdg", "celeba"]


class DataOptions(Options):
    """A key that is not set takes the default of the data set or of its partition; `resolve` fills it in."""

    root: str | None = Field(None, description="the folder of the data set, where it is not part of the package")
    download: bool = Field(False, description="fetch what is missing in the folder, for the data sets that torchvision can fetch")
    cache: str | None = Field(None, description="where decoded images are kept, by default the user's cache folder")
    size: int | None = Field(
        None, ge=1, le=4096, description="side of the images that are read from files, in pixels (default 224; celeba 96, folder 64)"
    )
    augment: Augmentation | None = Field(
        None, description="what is done to training images (default feddg-ga; celeba its own, none where images are not read from files)"
    )
    published_split: bool = Field(True, description="divide as the lists or folders of the copy do, where it has some; false: at random")
    partition: Partition | None = Field(None, description="how examples are dealt to clients; the data set has a default of its own")
    clients: int | None = Field(
        None, ge=1, le=MOST, description="number of clients, for iid, dirichlet, pathological and domain-mix (default 100)"
    )
    clients_per_domain: int | None = Field(
        None, ge=1, le=MOST, description="clients that a source domain is dealt to, for domain and domain-label (default 1)"
    )
    alpha: float | None = Field(
        None, gt=0, le=1e6, allow_inf_nan=False, description="concentration of dirichlet and domain-label: small is skewed (default 0.1)"
    )
    least: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="least examples a client, for dirichlet and domain-label (default 40 or half the mean, if less)",
    )
    repair: bool | None = Field(
        None, description="dirichlet and domain-label: where no draw gives everyone `least`, let the largest clients give (default false)"
    )
    mix: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of each domain dealt to all clients alike, for domain-mix (default 0.1)",
    )
    classes_per_client: int | None = Field(None, ge=1, le=MOST, description="classes that a client holds, for pathological (default 2)")
    validation: float | None = Field(
        None, ge=0, lt=1, description="share of a client's training data kept for validation (default 0.1, or 0 on label-shift sets)"
    )
    test: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share kept for tests where the data set fixes none (default 0.1; 0.25 on label-shift sets; pacs, vlcs, officehome 0)",
    )
    points: int = Field(500, ge=2, le=10**7, description="points a domain, in rect4")
    shift: bool = Field(True, description="rect4: domains differ; false deals the pooled points at random")


class Defaults(NamedTuple):
    """How a data set is dealt where the configuration does not say."""

    partition: Partition
    validation: float
    test: float
    size: int | None = None
    augment: Augmentation | None = None


DOMAIN_SHIFT = Defaults("domain", validation=0.1, test=0.1)
FOLDER = Defaults("domain", validation=0.1, test=0.1, size=64, augment="feddg-ga")
HELD_OUT = Defaults("domain", validation=0.1, test=0.0, size=224, augment="feddg-ga")
FACES = Defaults("domain-mix", validation=0.1, test=0.1, size=96, augment="celeba")
LABEL_SHIFT = Defaults("dirichlet", validation=0.0, test=0.25)

_DIRICHLET: Mapping[str, Any] = {"alpha": 0.1, "least": None, "repair": False}
PARTITION_KEYS: Mapping[Partition, Mapping[str, Any]] = {
    "domain": {"clients_per_domain": 1},
    "iid": {"clients": 100},
    "dirichlet": {"clients": 100, **_DIRICHLET},
    "pathological": {"clients": 100, "classes_per_client": 2},
    "domain-label": {"clients_per_domain": 1, **_DIRICHLET},
    "domain-mix": {"clients": 100, "mix": 0.1},
}
"""The keys that each partition reads, with their defaults. `least` has none: it depends on the number of examples."""

DEALING_KEYS = {"partition", "validation", "test", *(key for keys in PARTITION_KEYS.values() for key in keys)}
"""The keys that say who holds which examples, not which examples there are."""


def resolve(options: DataOptions, defaults: Defaults) -> DataOptions:
    """Fills in what is not set. A key that the partition does not read is an error: it would change nothing."""
    partition = options.partition or defaults.partition
    reads = PARTITION_KEYS[partition]
    for key in dict.fromkeys(key for keys in PARTITION_KEYS.values() for key in keys):
        if key not in reads and getattr(options, key) is not None:
            readers = " or ".join(f'"{name}"' for name, keys in PARTITION_KEYS.items() if key in keys)
            raise UserError(f'data.{key} has no effect with data.partition = "{partition}"; remove it, or set data.partition to {readers}')
    given = defaults._asdict()
    values = {**{key: given[key] for key in ("validation", "test", "size", "augment")}, **reads}
    unset = {key: value for key, value in values.items() if getattr(options, key) is None}
    return options.model_copy(update={"partition": partition, **unset})
