"""What runs that follow each other in one process need not make again: the examples, and what a frozen backbone made of them."""

from collections.abc import Callable

from fedomg.core.cache import cache_folder
from fedomg.core.rng import seeded_global_generator
from fedomg.data.catalogue import examples_key, load_dataset
from fedomg.data.dataset import Dataset
from fedomg.experiment.backbone import Watch, with_features
from fedomg.experiment.config import Config
from fedomg.experiment.engines import cores, device_of
from fedomg.models import build_model


class Shelf:
    """Holds what was made last."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Dataset]] = {}

    def examples(self, config: Config, watch: Watch) -> Dataset:
        """What the clients of this configuration train on, whoever holds it."""
        dataset = self._once("loaded", loaded_key(config), lambda: load_dataset(config.dataset, config.data, config.seed))
        if not config.model.frozen_backbone:
            return dataset
        return self._once("features", shelf_key(config), lambda: _features(config, dataset, watch))

    def _once(self, what: str, key: str, make: Callable[[], Dataset]) -> Dataset:
        if what not in self._held or self._held[what][0] != key:
            self._held.pop(what, None)  # two at once might not fit
            self._held[what] = key, make()
        return self._held[what][1]


def loaded_key(config: Config) -> str:
    """Equal for configurations that load the same examples."""
    return examples_key(config.dataset, config.data, config.seed)


def shelf_key(config: Config) -> str:
    """Equal for configurations that train on the same examples."""
    if not config.model.frozen_backbone:
        return loaded_key(config)
    return f"{loaded_key(config)} {config.model.model_dump_json()} {config.seed} {config.engine.device}"


def _features(config: Config, dataset: Dataset, watch: Watch) -> Dataset:
    with seeded_global_generator(config.seed, "initialisation"):
        model = build_model(config.model.name, dataset.shape, len(dataset.class_names), config.model.weights)
    return with_features(dataset, model.body, device_of(config.engine.device), cores(), cache_folder(config.data.cache), watch)
