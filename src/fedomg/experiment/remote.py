"""A site in a process that shares nothing with the server but the configuration: it reads and deals the data itself."""

import json

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import build_federation
from fedomg.experiment.site import LocalSite, fingerprint


def open_site(described: str) -> LocalSite:
    """From what `site.description` says."""
    told = json.loads(described)
    config = make_config(told["config"])
    federation = build_federation(config)
    if fingerprint(federation) != told["fingerprint"]:
        raise UserError(f'data set "{config.dataset}" differs between the machines that run this experiment; give each the same files')
    return LocalSite(config, federation, methods.build(config.method, config.local, config.aggregator).trainer)
