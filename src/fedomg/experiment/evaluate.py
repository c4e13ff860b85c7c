"""The evaluation views. A view is a phase like any other: it runs where the data are, on copies, and changes no state."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from fedomg.core.options import MOST, Options
from fedomg.core.records import Reply, Tally
from fedomg.data.dataset import Dataset
from fedomg.data.examples import Examples
from fedomg.local.trainer import Predictor

VIEW = "view:"
GLOBAL, PERSONALISED, ADAPTED = VIEW + "global", VIEW + "personalised", VIEW + "adapted"
VALIDATION = VIEW + "validation"
POOLED = "all"

Every = Annotated[int, Field(ge=1, le=MOST)] | Literal["last", "never"]
Numbers = dict[str, Any]


class EvaluateOptions(Options):
    """How often each view is taken: every so many rounds (and after the last), only after the last, or never."""

    global_: Every = Field(1, alias="global", description="the global model on every client's test data")
    personalised: Every | None = Field(None, description="the method's own personal model, likewise; by default as the method says")
    adapted: Every = Field("last", description="the model after the usual local training, likewise")
    target: Every = Field(1, description="the global model on the held-out domain")
    worst_group: Every = Field(1, description="the global model on the group it serves worst")
    validation: Every = Field(1, description="the global model on every client's validation data, for selection")
    batch_size: int = Field(256, ge=1, le=MOST, description="examples a forward pass")
    pairs_up_to: int = Field(32, ge=0, le=MOST, description="largest cohort of which the record of a round holds every pair of updates")

    def due(self, view: str, round: int, rounds: int) -> bool:
        every: Every | None = self.global_ if view == "global" else getattr(self, view)
        if every is None or every == "never":
            return False
        return round == rounds or (every != "last" and round % every == 0)


def tally(predictor: Predictor, examples: Examples, batch_size: int) -> dict[str, Tally]:
    """Sums over these examples: pooled, by domain and by group."""
    losses, correct = [], []
    with torch.no_grad():
        for inputs, labels in examples.in_order(batch_size):
            logits = predictor(inputs)
            losses.append(F.cross_entropy(logits, labels, reduction="none"))
            correct.append(logits.argmax(dim=1) == labels)
    all_losses, all_correct = torch.cat(losses).double().cpu(), torch.cat(correct).cpu()
    whole = Tally(len(all_correct), int(all_correct.sum()), float(all_losses.sum()))
    cells = {
        name: Tally(int(members.sum()), int(all_correct[members].sum()), float(all_losses[members].sum()))
        for name, members in _cells(examples.dataset, examples.indices)
    }
    return {POOLED: whole, **cells}


def _cells(dataset: Dataset, rows: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
    for kind, names, membership in (("domain", dataset.domain_names, dataset.domains), ("group", dataset.group_names, dataset.groups)):
        if membership is not None:
            of_each = membership[rows].cpu()
            for index in of_each.unique().tolist():
                yield f"{kind}:{names[index]}", of_each == index


def view_record(replies: Sequence[Reply]) -> Numbers | None:
    """One view of all clients: pooled, by client and by domain. None where nobody holds data for it."""
    seen = _seen(replies)
    if not seen:
        return None
    clients = {str(reply.client): numbers(reply.tallies[POOLED]) for reply in seen}
    record = {**numbers(_pool(seen, POOLED)), "per_client": _across([client["accuracy"] for client in clients.values()])}
    record["clients"] = clients
    record["domains"] = _by(seen, "domain:")
    return record


def worst_group_record(replies: Sequence[Reply]) -> Numbers | None:
    """The group with the lowest accuracy; the groups are the domains where the data set defines none."""
    seen = _seen(replies)
    groups = _by(seen, "group:") or _by(seen, "domain:")
    if len(groups) < 2:
        return None
    worst = min(groups, key=lambda name: groups[name]["accuracy"])
    return {**groups[worst], "group": worst, "groups": groups}


def _seen(replies: Sequence[Reply]) -> list[Reply]:
    """Those that hold data for a view, and have replied."""
    return [reply for reply in replies if reply.tallies.get(POOLED, Tally()).n]


def _across(accuracies: Sequence[float]) -> Numbers:
    """How evenly clients are served: mean, deviation (of this population), and the mean of the worst tenth."""
    worst = sorted(accuracies)[: max(1, len(accuracies) // 10)]
    return {"mean": fmean(accuracies), "std": pstdev(accuracies), "worst_decile": fmean(worst)}


def validation_record(replies: Sequence[Reply]) -> dict[str, dict[str, Numbers]]:
    """By domain, and by group where the data set defines groups."""
    groups = _by(replies, "group:")
    return {"validation": _by(replies, "domain:"), **({"validation_groups": groups} if groups else {})}


def generalisation_gap(validation: Mapping[str, Numbers], views: Mapping[str, Numbers]) -> Numbers | None:
    """How much worse the held-out domain is served than the source domains' validation data: large is bad, in accuracy and in loss.

    None in rounds in which not both were evaluated.
    """
    n = sum(domain["n"] for domain in validation.values())
    if "target" not in views or not n:
        return None
    source = {metric: sum(domain[metric] * domain["n"] for domain in validation.values()) / n for metric in ("accuracy", "loss")}
    target = views["target"]
    return {"accuracy": source["accuracy"] - target["accuracy"], "loss": target["loss"] - source["loss"]}


def numbers(tally: Tally) -> Numbers:
    return {"accuracy": tally.accuracy, "loss": tally.loss, "n": tally.n}


def _by(replies: Sequence[Reply], prefix: str) -> dict[str, Numbers]:
    totals: dict[str, Tally] = {}
    for reply in replies:
        for name, found in reply.tallies.items():
            if name.startswith(prefix):
                totals[name] = totals.get(name, Tally()) + found
    return {name.removeprefix(prefix): numbers(total) for name, total in totals.items()}


def _pool(replies: Sequence[Reply], name: str) -> Tally:
    return sum((reply.tallies[name] for reply in replies if name in reply.tallies), Tally())
