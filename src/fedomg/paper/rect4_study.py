"""Which of the paper's claims about Rect-4 hold, over a family of constructions, seeds and server learning rates.

The paper describes its toy in words and gives no numbers (Nguyen et al., ICLR 2025, section 5.1 and its appendix on the toy), so no
single construction can speak for it. Every row is one trained path with its measures; a claim compares two rows, and its share is over
all pairs of the family.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path as File
from typing import NamedTuple

import torch
from torch import Tensor

from fedomg.paper.rect4_paths import FAMILY, ROUNDS, Construction, Path, Rule, Users, accuracy, centralised, matched, mean, updates, walk

SERVER_LRS = (0.1, 0.5, 1.0, 1.5)
SEEDS = (0, 1, 2, 3, 4)
EVERYONE = "all users"
RANDOM = "dealt at random"
ERM, FEDAVG, FEDOMG, AS_LONG = "erm", "fedavg", "fedomg", "fedavg, steps as long as fedomg's"


def held_out(user: int) -> str:
    return f"without user {user + 1}"


HELD_OUT = tuple(map(held_out, range(4)))


@dataclass(frozen=True)
class Row:
    """One path. `users` says who trains. All distances are between models (w_x, w_y, b).

    apart: mean over rounds of the distance to the centralised model of the same round. off_path: the same to the nearest point of the
    centralised path, whichever round. from_best: of the last model to the last centralised one on all users. cosine: mean
    over rounds and pairs of users of the cosine between their updates; first_cosine: in the first round. alignment: mean cosine between
    the method's direction and the centralised update, both taken at the centralised models, so that they start from the same place, and
    first_alignment: in the first round; neither depends on the server learning rate.
    """

    construction: str
    seed: int
    users: str
    method: str
    server_lr: float
    w_x: float
    w_y: float
    bias: float
    apart: float
    off_path: float
    from_best: float
    cosine: float
    first_cosine: float
    alignment: float
    first_alignment: float
    accuracy: float

    @property
    def offset(self) -> float:
        """How far above or below y = 0 the boundary crosses x = 0."""
        return abs(self.bias / self.w_y)


def study(
    seeds: Sequence[int] = SEEDS,
    constructions: Sequence[Construction] = FAMILY,
    server_lrs: Sequence[float] = SERVER_LRS,
    rounds: int = ROUNDS,
    points: int = 500,
    note: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Every path of the family."""
    sets = [(construction, seed) for construction in constructions for seed in seeds]
    shifted = Users.of([construction.data(seed, points=points) for construction, seed in sets])
    dealt = Users.of([construction.data(seed, shift=False, points=points) for construction, seed in sets])
    everybody = {EVERYONE: shifted, RANDOM: dealt, **{held_out(user): shifted.without(user) for user in range(4)}}
    best = centralised(shifted, rounds).models[:, -1]
    rows: list[Row] = []
    for name, users in everybody.items():
        note(name)
        centre = centralised(users, rounds)
        for method, server_lr, path, alignment in _paths(users, centre, server_lrs, rounds):
            aligned = {"alignment": alignment.mean(dim=1), "first_alignment": alignment[:, 0]}
            measured = measures(path, centre, best) | aligned | {"accuracy": accuracy(shifted, path.models[:, -1])}
            rows += _rows(sets, name, method, server_lr, measured)
    return rows


def _paths(users: Users, centre: Path, server_lrs: Sequence[float], rounds: int) -> Iterator[tuple[str, float, Path, Tensor]]:
    yield ERM, 1.0, centre, torch.ones(len(users.sides), rounds)
    fedavg, fedomg = alignment(users, centre, mean), alignment(users, centre, matched)
    for server_lr in server_lrs:
        yield FEDAVG, server_lr, walk(users, mean, server_lr, rounds), fedavg
        path = walk(users, matched, server_lr, rounds)
        yield FEDOMG, server_lr, path, fedomg
        yield AS_LONG, server_lr, walk(users, mean, server_lr, rounds, path.lengths), fedavg


def _rows(
    sets: Sequence[tuple[Construction, int]], users: str, method: str, server_lr: float, measured: dict[str, Tensor]
) -> Iterator[Row]:
    for place, (construction, seed) in enumerate(sets):
        yield Row(str(construction), seed, users, method, server_lr, **{name: float(values[place]) for name, values in measured.items()})


# --- measures ---------------------------------------------------------------------------------------------------------------------------


def measures(path: Path, centre: Path, best: Tensor) -> dict[str, Tensor]:
    """Those that the path alone decides, for every data set."""
    last, cosines = path.models[:, -1], pair_cosines(path.updates)
    w_x, w_y, bias = last.unbind(dim=-1)
    return {
        "w_x": w_x,
        "w_y": w_y,
        "bias": bias,
        "apart": (path.models - centre.models)[:, 1:].norm(dim=-1).mean(dim=1),
        "off_path": distance_to_path(path.models[:, 1:], centre.models).mean(dim=1),
        "from_best": (last - best).norm(dim=-1),
        "cosine": cosines.mean(dim=1),
        "first_cosine": cosines[:, 0],
    }


def pair_cosines(rows: Tensor) -> Tensor:
    """The mean cosine over all pairs of users: (..., users, 3) to (...); nan for one user."""
    count = rows.shape[-2]
    if count == 1:
        return rows.new_full(rows.shape[:-2], torch.nan)
    units = torch.nn.functional.normalize(rows, dim=-1, eps=1e-300)
    cosines = units @ units.mT
    return (cosines.sum(dim=(-2, -1)) - cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)) / (count * (count - 1))


def distance_to_path(points: Tensor, corners: Tensor) -> Tensor:
    """Of points (sets, n, 3) to the broken line through the corners (sets, m, 3): (sets, n)."""
    starts, sides = corners[:, :-1], corners.diff(dim=1)
    reached = points[:, :, None] - starts[:, None]
    along = torch.einsum("snmk,smk->snm", reached, sides) / sides.square().sum(dim=-1).clamp(min=1e-300)[:, None]
    distances: Tensor = torch.linalg.vector_norm(reached - along.clamp(0, 1)[..., None] * sides[:, None], dim=-1)
    return distances.amin(dim=-1)


def alignment(users: Users, centre: Path, rule: Rule) -> Tensor:
    """The cosine between the rule's direction and the centralised update at every model of the centralised path: (sets, rounds)."""
    found = []
    for round in range(centre.updates.shape[1]):
        direction = rule(updates(users, centre.models[:, round]))
        found.append(torch.cosine_similarity(direction, centre.updates[:, round, 0], dim=-1))
    return torch.stack(found, dim=1)


# --- claims -----------------------------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """`holds` compares the row of `users` and `method` with that of `rival_users` and `rival`, both at one server learning rate.

    A claim that is `once` does not depend on this rate, and is counted once.
    """

    text: str
    users: tuple[str, ...]
    method: str
    rival: str
    holds: Callable[[Row, Row], bool]
    rival_users: str | None = None
    once: bool = False

    @property
    def against(self) -> str:
        if self.method == self.rival:
            return self.rival_users or ""
        return "FedAvg, steps as long" if self.rival == AS_LONG else "FedAvg"


class Share(NamedTuple):
    """In how many comparisons a claim holds."""

    claim: str
    rival: str
    construction: str
    server_lr: float | None
    held: int
    of: int


def _claims() -> Iterator[Claim]:
    all_, out = (EVERYONE,), HELD_OUT
    yield Claim("updates conflict under domain shift: mean cosine below 0", all_, FEDAVG, FEDAVG, lambda a, _: a.cosine < 0)
    yield Claim("updates agree when dealt at random: mean cosine above 0", (RANDOM,), FEDAVG, FEDAVG, lambda a, _: a.cosine > 0)
    yield Claim(
        "updates agree less under domain shift than dealt at random", all_, FEDAVG, FEDAVG, lambda a, b: a.cosine < b.cosine, RANDOM
    )
    yield Claim("FedAvg strays further from the centralised path under domain shift", all_, FEDAVG, FEDAVG, _strays_more, RANDOM)
    yield Claim("FedAvg's bias is larger with one user held out", out, FEDAVG, FEDAVG, lambda a, b: abs(a.bias) > abs(b.bias), EVERYONE)
    direction, first = "FedOMG's direction is nearer to the centralised one", ", in the first round"
    yield Claim(direction, all_, FEDOMG, FEDAVG, lambda a, b: a.alignment > b.alignment, once=True)
    yield Claim(direction + first, all_, FEDOMG, FEDAVG, lambda a, b: a.first_alignment > b.first_alignment, once=True)
    for rival in (FEDAVG, AS_LONG):
        yield Claim("FedOMG is nearer to the centralised model, round by round", all_, FEDOMG, rival, lambda a, b: a.apart < b.apart)
        yield Claim("FedOMG is nearer to the centralised path", all_, FEDOMG, rival, lambda a, b: a.off_path < b.off_path)
        yield Claim("one user held out: FedOMG has less bias", out, FEDOMG, rival, lambda a, b: abs(a.bias) < abs(b.bias))
        yield Claim("one user held out: FedOMG's boundary is nearer to y = 0", out, FEDOMG, rival, lambda a, b: a.offset < b.offset)
        yield Claim("one user held out: FedOMG ends nearer to the optimum", out, FEDOMG, rival, lambda a, b: a.from_best < b.from_best)


def _strays_more(row: Row, rival: Row) -> bool:
    return row.off_path > rival.off_path


CLAIMS = tuple(_claims())


def shares(rows: Sequence[Row]) -> list[Share]:
    """Every claim, by construction and server learning rate."""
    places: dict[tuple[str, float], dict[tuple[int, str, str], Row]] = {}
    for row in rows:
        if row.method != ERM:
            places.setdefault((row.construction, row.server_lr), {})[row.seed, row.users, row.method] = row
    least = min(server_lr for _, server_lr in places)
    return [
        _share(claim, construction, None if claim.once else server_lr, at)
        for claim in CLAIMS
        for (construction, server_lr), at in places.items()
        if server_lr == least or not claim.once
    ]


def _share(claim: Claim, construction: str, server_lr: float | None, at: dict[tuple[int, str, str], Row]) -> Share:
    """Over the seeds and settings of one place."""
    seeds = sorted({seed for seed, _, _ in at})
    pairs = [(at[seed, users, claim.method], at[seed, claim.rival_users or users, claim.rival]) for seed in seeds for users in claim.users]
    return Share(claim.text, claim.rival, construction, server_lr, sum(claim.holds(*pair) for pair in pairs), len(pairs))


def write(path: File, items: Sequence[Row] | Sequence[Share]) -> None:
    """As CSV, numbers to six digits."""
    table = [asdict(item) if isinstance(item, Row) else item._asdict() for item in items]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table[0])
        writer.writerows([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()] for row in table)


def read_shares(path: File) -> list[Share]:
    with path.open(encoding="utf-8") as file:
        return [
            Share(
                line["claim"],
                line["rival"],
                line["construction"],
                float(line["server_lr"]) if line["server_lr"] else None,
                int(line["held"]),
                int(line["of"]),
            )
            for line in csv.DictReader(file)
        ]


def markdown(found: Sequence[Share]) -> str:
    """A line a claim: in how many comparisons it holds, by server learning rate and in all."""
    rates = sorted({share.server_lr for share in found if share.server_lr is not None})
    lines = [f"| claim | against | {' | '.join(f'{rate:g}' for rate in rates)} | all |", "|---|---|" + "---:|" * (len(rates) + 1)]
    for claim in CLAIMS:
        of_claim = [share for share in found if (share.claim, share.rival) == (claim.text, claim.rival)]
        by_rate = [_counts([share for share in of_claim if share.server_lr == rate]) for rate in rates]
        cells = [f"{held} of {of}" if of else "" for held, of in by_rate]
        held, of = _counts(of_claim)
        lines.append(f"| {claim.text} | {claim.against} | {' | '.join(cells)} | {held} of {of}, {100 * held / of:.0f} % |")
    return "\n".join(lines)


def _counts(found: Sequence[Share]) -> tuple[int, int]:
    return sum(share.held for share in found), sum(share.of for share in found)
