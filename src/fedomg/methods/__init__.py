"""All methods by name, and their composition with the OMG rule: `x+omg` trains as x does and combines as FedOMG does."""

from typing import Any, NamedTuple

from fedomg.core.errors import UserError
from fedomg.core.names import unknown_name
from fedomg.local.options import LocalOptions
from fedomg.methods import (
    erm,
    fedadg,
    fedas,
    fedavg,
    fedbabu,
    fedga,
    fediir,
    fedpac,
    fedprox,
    fedrod,
    fedsam,
    fedsr,
    fish,
    fishr,
    mofedsam,
    peravg,
    scaffold,
    stablefdg,
)
from fedomg.methods.method import Entry, Method
from fedomg.server.aggregator import Aggregator
from fedomg.server.omg import OMG, OMGOptions
from fedomg.server.options import AggregatorOptions
from fedomg.server.rules import Mean, Rule
from fedomg.server.weighting import WEIGHTINGS

_MODULES = (
    *(fedavg, fedprox, scaffold, peravg, fedrod, fedbabu, fedpac, fedas),
    *(fedga, fedsam, mofedsam, fediir, fedsr, stablefdg, fedadg),
    *(erm, fish, fishr),
)
ENTRIES: dict[str, Entry] = {module.METHOD.name: module.METHOD for module in _MODULES}
ALIASES = {"fedomg": "fedavg+omg"}
OMG_SUFFIX = "+omg"


class Name(NamedTuple):
    """A method's canonical name and what it is made of."""

    canonical: str
    entry: Entry
    omg: bool


def names() -> list[str]:
    """Every canonical name."""
    return [name for entry in ENTRIES.values() for name in (entry.name, entry.name + OMG_SUFFIX)[: 1 + entry.composes]]


def parse(name: str) -> Name:
    """Accepts aliases and capitals."""
    lower = name.strip().lower()
    canonical = ALIASES.get(lower, lower)
    base, plus, rule = canonical.partition("+")
    if base not in ENTRIES or (plus and rule != "omg"):
        raise UserError(unknown_name("method", name, [*names(), *ALIASES]))
    entry = ENTRIES[base]
    if plus and not entry.composes:
        raise UserError(f'method "{base}" does not compose with OMG: {entry.refusal}')
    return Name(canonical, entry, bool(plus))


def local_options(name: str) -> type[LocalOptions]:
    return parse(name).entry.local


def aggregator_options(name: str) -> type[AggregatorOptions]:
    return OMGOptions if parse(name).omg else AggregatorOptions


def build(name: str, local: LocalOptions, combine: AggregatorOptions) -> Method:
    canonical, entry, _ = parse(name)
    weighting = (entry.weighting if combine.weighting is None else WEIGHTINGS[combine.weighting])(local)
    rule: Rule = OMG(combine) if isinstance(combine, OMGOptions) else Mean()
    return Method(canonical, entry.trainer(local), entry.coordinator(local), Aggregator(weighting, rule))


def individual(name: str) -> str:
    """Why the server must see what each client sends, or nothing where sums suffice. With one client there is no sum to hide in."""
    _, entry, omg = parse(name)
    return entry.individual or (OMG.individual if omg else "") or ("there is one client" if entry.kind == "centralised" else "")


def catalogue() -> list[dict[str, Any]]:
    """Every method as plain values."""
    rows = []
    for name in names():
        canonical, entry, omg = parse(name)
        reason = individual(name)
        rows.append(
            {
                "name": canonical,
                "aliases": [alias for alias, of in ALIASES.items() if of == canonical],
                "kind": entry.kind,
                "composes": entry.composes and not omg,
                "needs_body": entry.needs_body,
                "needs": "individual" if reason else "sums",
                "needs_because": reason or None,
                "summary": f"{entry.name} on the clients, the invariant direction on the server" if omg else entry.summary,
                "citation": f"{entry.citation}; Nguyen et al., ICLR 2025" if omg else entry.citation,
            }
        )
    return rows
