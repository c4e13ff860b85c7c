"""The configuration of one experiment: TOML in, validated, and resolved so that the file of a run says everything."""

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.options import MOST, Options
from fedomg.data.catalogue import FROM_FILES, PUBLISHED, SOURCES, known_dataset, known_target, with_defaults
from fedomg.data.options import DataOptions
from fedomg.experiment.evaluate import EvaluateOptions
from fedomg.local.options import LocalOptions
from fedomg.models.options import ModelOptions
from fedomg.server.omg import OMGOptions, preset_defaults
from fedomg.server.options import AggregatorOptions, ServerOptions

Table = dict[str, Any]


class EngineOptions(Options):
    """Where and how fast, never what is computed (a device other than the processor rounds differently)."""

    name: Literal["auto", "inline", "pool", "flower", "vectorised"] = Field(
        "auto",
        description="auto: this process, and workers once a run proves long; inline: this process; pool: workers; "
        "flower: nodes of a grid; vectorised: this process, several clients trained as one, the same but for rounding",
    )
    together: int | None = Field(None, ge=1, le=MOST, description="vectorised: clients that train as one (default 32)")
    workers: int | Literal["auto"] = Field("auto", description="worker processes, by default one a core")
    device: str = Field("cpu", description="where models, data and updates are: cpu, cuda or cuda:N")
    states: int = Field(256, ge=0, le=MOST, description="MiB of client states kept in memory; beyond, they stay on disk and are mapped")

    @field_validator("workers")
    @classmethod
    def _some_workers(cls, workers: int | str) -> int | str:
        if isinstance(workers, int) and workers < 1:
            raise ValueError("must be 1 or more")
        return workers

    @field_validator("device")
    @classmethod
    def _a_device(cls, name: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
            raise UserError(f'engine.device = "{name}": known are cpu, cuda and cuda:N')
        return name

    @model_validator(mode="after")
    def _together_where_it_is_read(self) -> "EngineOptions":
        if self.together is not None and self.name != "vectorised":
            raise UserError('engine.together has no effect but with engine.name = "vectorised"; remove it')
        return self

    @model_validator(mode="after")
    def _workers_on_the_processor(self) -> "EngineOptions":
        if self.name in ("pool", "flower") and self.device != "cpu":
            raise UserError(f'engine.name = "{self.name}" runs on the processor: remove engine.device, or set engine.name to "inline"')
        return self


class Config(Options):
    """Everything that decides what a run computes."""

    method: str = Field("fedomg", validate_default=True, description="base method, with +omg for the matching rule")
    dataset: str = Field("emoji", description="name of the data set, or package.module:name of your own")
    target: str | None = Field(None, description="the domain held out from training and selection")
    seed: int = Field(0, ge=0, description="of partition, sampling, initialisation, batches and noise")
    rounds: int = Field(20, ge=1, le=MOST, description="communication rounds")
    local: SerializeAsAny[LocalOptions] = Field(default_factory=LocalOptions, validate_default=True)
    aggregator: SerializeAsAny[AggregatorOptions] = Field(default_factory=AggregatorOptions, validate_default=True)
    server: ServerOptions = ServerOptions()
    model: ModelOptions = ModelOptions()
    data: DataOptions = Field(default_factory=DataOptions, validate_default=True)
    evaluate: EvaluateOptions = Field(default_factory=EvaluateOptions, validate_default=True)
    engine: EngineOptions = EngineOptions()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_preset(cls, values: Table) -> Table:
        """A preset's values hold where the configuration names none of its own."""
        aggregator, server = values.get("aggregator"), values.get("server", {})
        if not isinstance(aggregator, dict) or not isinstance(aggregator.get("preset"), str) or not isinstance(server, dict):
            return values
        if not _combines_by_omg(values.get("method", "fedomg")):
            return values  # the method has no presets, and this is what its user should hear
        defaults, server_lr = preset_defaults(aggregator["preset"])
        return {**values, "aggregator": {**defaults, **aggregator}, "server": {"lr": server_lr, **server}}

    @field_validator("method")
    @classmethod
    def _canonical_method(cls, name: str) -> str:
        return methods.parse(name).canonical

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, name: str) -> str:
        return known_dataset(name)

    @field_validator("target")
    @classmethod
    def _known_target(cls, target: str | None, info: ValidationInfo) -> str | None:
        return target if target is None or "dataset" not in info.data else known_target(info.data["dataset"], target)

    @field_validator("data")
    @classmethod
    def _data_of_the_dataset(cls, options: DataOptions, info: ValidationInfo) -> DataOptions:
        if "dataset" not in info.data:
            return options
        features = "model" not in info.data or info.data["model"].frozen_backbone
        refuse_unread(info.data["dataset"], options, features)
        resolved = with_defaults(info.data["dataset"], options)
        if "model" not in info.data or not features:
            return resolved
        if options.augment not in (None, "none"):
            raise UserError("data.augment has no effect with model.frozen_backbone, which sees every image once; remove it")
        return resolved.model_copy(update={"augment": "none"})

    @field_validator("engine", mode="before")
    @classmethod
    def _engine_by_its_name(cls, value: Any) -> Any:
        """`engine = "pool"` is short for the table with this name alone."""
        return {"name": value} if isinstance(value, str) else value

    @field_validator("local", mode="before")
    @classmethod
    def _local_of_the_method(cls, value: Any, info: ValidationInfo) -> Any:
        return _of_the_method("local", methods.local_options, value, info)

    @field_validator("aggregator", mode="before")
    @classmethod
    def _aggregator_of_the_method(cls, value: Any, info: ValidationInfo) -> Any:
        return _of_the_method("aggregator", methods.aggregator_options, value, info)

    @field_validator("evaluate")
    @classmethod
    def _evaluate_as_the_method(cls, options: EvaluateOptions, info: ValidationInfo) -> EvaluateOptions:
        if options.personalised is not None or "method" not in info.data:
            return options
        return options.model_copy(update={"personalised": methods.parse(info.data["method"]).entry.personalised_every})

    @model_validator(mode="after")
    def _method_without_the_body(self) -> "Config":
        if self.model.frozen_backbone and methods.parse(self.method).entry.needs_body:
            raise UserError(f'method "{self.method}" works on the body, so it cannot run with model.frozen_backbone; remove that key')
        return self

    def table(self) -> Table:
        """Plain values, without those that are None: TOML has no null."""
        dumped: Table = self.model_dump(by_alias=True, exclude_none=True)
        return dumped

    def hash(self) -> str:
        """Identifies what is computed."""
        table = {key: value for key, value in flat(self.table()).items() if decides(key)}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def decides(key: str) -> bool:
    """Whether a dotted key has a part in what is computed, and not only in where and how fast."""
    return not key.startswith("engine.") and key != "data.cache"


def _combines_by_omg(method: Any) -> bool:
    return isinstance(method, str) and methods.parse(method).omg


def refuse_unread(dataset: str, options: DataOptions, features: bool = False) -> None:
    """A folder, a download, or a way to read pictures that the data set does not use is an error: it would change nothing.

    `features` says whether features are made of the data set, which the cache holds as well.
    """
    reads_pictures = [source.name for source in FROM_FILES]
    for key, read in (("size", False), ("cache", features)):
        if getattr(options, key) is not None and dataset not in reads_pictures and not read:
            others = " and any with model.frozen_backbone" if key == "cache" else ""
            readers = ", ".join(reads_pictures) + others
            raise UserError(f'data.{key} has no effect with data set "{dataset}"; remove it (it is for: {readers})')
    divided = [source.name for source in FROM_FILES if source.sizes is not None]
    if not options.published_split and dataset not in divided:
        raise UserError(f'data.published_split has no effect with data set "{dataset}"; remove it (it is for: {", ".join(divided)})')
    if options.root is not None and (dataset not in SOURCES or not SOURCES[dataset].needs_root):
        raise UserError(f'data.root has no effect with data set "{dataset}", which reads no folder; remove it')
    fetched = [source.name for source in PUBLISHED]
    if options.download and dataset not in fetched:
        raise UserError(f'data.download has no effect with data set "{dataset}"; remove it (fetched are: {", ".join(fetched)})')


def _of_the_method(table: str, options_of: Callable[[str], type[Options]], value: Any, info: ValidationInfo) -> Any:
    """Validates a table whose keys depend on the method."""
    if "method" not in info.data:
        return value
    options = options_of(info.data["method"])
    given = value.model_dump(exclude_unset=True) if isinstance(value, Options) else value
    try:
        return options.model_validate(given)
    except ValidationError as error:
        raise UserError(_explain(error, options, (table,), info.data["method"])) from None


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a TOML file and applies `key=value` overrides."""
    table = read_table(path, overrides)
    if "sweep" in table:
        raise UserError(f"{path} has a [sweep] table and so describes several runs: use fedomg sweep")
    return make_config(table)


def read_table(path: Path, overrides: Sequence[str] = ()) -> Table:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    return overridden(table, overrides)


def make_config(table: Table, overrides: Sequence[str] = ()) -> Config:
    table = overridden(table, overrides)
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise UserError(_explain(error, Config, ())) from None


def overridden(table: Table, overrides: Sequence[str]) -> Table:
    """The table with `key=value` settings in it."""
    for override in overrides:
        table = _override(table, override)
    return table


def _override(table: Table, override: str) -> Table:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f'--set needs KEY=VALUE, such as local.lr=0.01 (got "{override}")')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return with_value(table, path, value, f"--set {key}")


def with_value(table: Table, path: Sequence[str], value: Any, asked: str) -> Table:
    """The table with another value at the end of a path of keys; `asked` says who asks for it."""
    head, *rest = path
    if not rest:
        return {**table, head: value}
    inner = table.get(head, {})
    if not isinstance(inner, dict):
        raise UserError(f'{asked}: "{head}" is a value, not a table')
    return {**table, head: with_value(inner, rest, value, asked)}


def _explain(error: ValidationError, options: type[BaseModel], prefix: tuple[str, ...], method: str | None = None) -> str:
    """The first thing that is wrong, in one line with its way out."""
    first = error.errors()[0]
    location = _location(first["loc"], options)
    key = ".".join((*prefix, *location))
    if first["type"] == "extra_forbidden":
        return _unknown_key(key, options, prefix, location, method)
    if first["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"{key} is a table of its own: write [{key}] (got {first['input']!r})"
    depth = len(location)
    messages = [e["msg"].removeprefix("Input ") for e in error.errors() if e["loc"][:depth] == first["loc"][:depth]]
    message = "; or ".join(dict.fromkeys(messages))
    return f"{key} {message} (got {first['input']!r})"


def _location(parts: Sequence[int | str], options: type[BaseModel]) -> list[str]:
    """The keys down to the value: what follows is the branch of a type that was tried."""
    keys: list[str] = []
    for part in map(str, parts):
        keys.append(part)
        tables = dict(_tables(options))
        if part not in tables:
            break
        options = tables[part]
    return keys


def _unknown_key(key: str, options: type[BaseModel], prefix: tuple[str, ...], location: list[str], method: str | None) -> str:
    for part in location[:-1]:
        options = next(annotation for name, annotation in _tables(options) if name == part)
        prefix = (*prefix, part)
    if method and prefix == ("aggregator",) and location[-1] in OMGOptions.model_fields:
        composes = methods.parse(method).entry.composes
        owner = f'"{method}{methods.OMG_SUFFIX}"' if composes else "the matching rule, with which it does not compose"
        return f'method "{method}" has no key "{key}"; it belongs to {owner}'
    owners = [name for name, entry in methods.ENTRIES.items() if location[-1] in _keys(entry.local)] if prefix == ("local",) else []
    if owners:
        return f'method "{method}" has no key "{key}"; it belongs to ' + " or ".join(f'"{owner}"' for owner in owners)
    here = difflib.get_close_matches(location[-1], _keys(options), n=1)
    if here:
        return f'unknown key "{key}"; did you mean "{".".join((*prefix, here[0]))}"?'
    everywhere = {name.rpartition(".")[2]: name for name in _all_keys()}
    elsewhere = difflib.get_close_matches(location[-1], everywhere, n=1)
    if elsewhere:
        return f'unknown key "{key}"; did you mean "{everywhere[elsewhere[0]]}"?'
    return f'unknown key "{key}"; known are: {", ".join(_keys(options))}'


def _keys(options: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in options.model_fields.items()]


def _tables(options: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in options.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, OMGOptions if field.annotation is AggregatorOptions else field.annotation


def _all_keys() -> Iterator[str]:
    yield from _keys(Config)
    for table, options in _tables(Config):
        yield from (f"{table}.{key}" for key in _keys(options))


def flat(table: Mapping[str, Any]) -> Table:
    """The values under their dotted keys."""
    values: Table = {}
    for key, value in table.items():
        values |= {f"{key}.{inner}": v for inner, v in flat(value).items()} if isinstance(value, Mapping) else {key: value}
    return values


def to_toml(config: Config) -> str:
    """The resolved configuration; reading it back gives the same one."""
    table = config.table()
    scalars = {key: value for key, value in table.items() if not isinstance(value, dict)}
    blocks = [_lines(scalars)]
    blocks += [f"[{name}]\n" + _lines(inner) for name, inner in table.items() if isinstance(inner, dict) and inner]
    return "\n".join(blocks)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
