"""Pictures of the Rect-4 study: users (the paper's Figures 7 and 8), paths of training (Figure 1), and how often each claim holds."""

from collections.abc import Sequence
from pathlib import Path as File

import numpy as np
import torch

from fedomg.data.deal import deal
from fedomg.data.options import DataOptions
from fedomg.paper.rect4_paths import LAYOUTS, ROUNDS, Construction, Path, Users, centralised, matched, mean, walk
from fedomg.paper.rect4_study import CLAIMS, EVERYONE, HELD_OUT, RANDOM, Share, pair_cosines
from fedomg.report import toy
from fedomg.report.drawing import PALETTE, legend, panels, save, styled

SHOWN = Construction("alternating", 0.5)
"""That of the data set `rect4`."""
PULLED_AT = (0, 2, 8)
"""Rounds of FedAvg at which the users' updates are shown."""


def draw(shares: Sequence[Share], out: File, seed: int = 0, rounds: int = ROUNDS) -> list[File]:
    """Draws everything; without shares, all but their table."""
    claims = _draw_claims(shares, out) if shares else []
    return _draw_users(out, seed) + _draw_paths(out, seed, rounds) + _draw_cosines(out, rounds) + claims


def _draw_users(out: File, seed: int) -> list[File]:
    found = []
    for shift, name in ((True, "figure7"), (False, "figure8")):
        federation = deal(SHOWN.data(seed, shift), None, DataOptions(test=0, validation=0), seed)
        found += toy.points(federation, out, name=f"rect4-{name}")
    return found


def _draw_paths(out: File, seed: int, rounds: int) -> list[File]:
    """With all users, and with each held out; the arrows are the users' updates."""
    whole = Users.of([SHOWN.data(seed)])
    settings = {EVERYONE: whole, **{name: whole.without(user) for user, name in enumerate(HELD_OUT)}}
    paths = {name: _compared(users, rounds) for name, users in settings.items()}
    points = {name: {method: path.models[0].numpy() for method, path in found.items()} for name, found in paths.items()}
    pulls = {name: _pulls(found["fedavg"]) for name, found in paths.items()}
    return toy.trajectories(points, out, pulls=pulls, name="rect4-figure1")


def _compared(users: Users, rounds: int) -> dict[str, Path]:
    fedomg = walk(users, matched, rounds=rounds)
    as_long = walk(users, mean, rounds=rounds, lengths=fedomg.lengths)
    return {"erm": centralised(users, rounds), "fedavg": walk(users, mean, rounds=rounds), "fedavg as long": as_long, "fedavg+omg": fedomg}


def _pulls(path: Path) -> tuple[toy.Array, toy.Array]:
    at = [round for round in PULLED_AT if round < path.updates.shape[1]]
    updates = path.updates[0, at]
    starts = path.models[0, at][:, None].expand_as(updates)
    return starts.reshape(-1, 3).numpy(), updates.reshape(-1, 3).numpy()


def _draw_cosines(out: File, rounds: int, seeds: Sequence[int] = (0, 1, 2, 3, 4)) -> list[File]:
    """The mean cosine between users' updates on the way of FedAvg, a line a seed."""
    with styled():
        figure, axes = panels(len(LAYOUTS), sharey=True)
        for layout, one in zip(LAYOUTS, axes, strict=True):
            construction = Construction(layout, SHOWN.noise)
            for shift, colour, dashes, label in ((True, PALETTE[5], "-", "a domain each"), (False, PALETTE[0], "--", RANDOM)):
                users = Users.of([construction.data(seed, shift) for seed in seeds])
                lines = pair_cosines(walk(users, mean, rounds=rounds).updates).numpy()
                one.plot(np.arange(1, rounds + 1), lines.T, color=colour, linestyle=dashes, linewidth=1, label=label)
            one.axhline(0, color="#888888", linewidth=0.8)
            one.set(title=str(construction), xlabel="round", ylim=(-0.5, 1.05))
        axes[0].set_ylabel("mean cosine between updates")
        legend(figure, axes)
        return save(figure, out, "rect4-cosines")


def _draw_claims(shares: Sequence[Share], out: File) -> list[File]:
    """The share in which each claim holds, by construction, over all server learning rates and seeds."""
    constructions = list(dict.fromkeys(share.construction for share in shares))
    table = torch.zeros(len(CLAIMS), len(constructions))
    for row, claim in enumerate(CLAIMS):
        for column, construction in enumerate(constructions):
            cells = [s for s in shares if (s.claim, s.rival, s.construction) == (claim.text, claim.rival, construction)]
            table[row, column] = 100 * sum(s.held for s in cells) / sum(s.of for s in cells)
    with styled():
        figure, (axes,) = panels(1, size=(10.5, 6.0))
        image = axes.imshow(table.numpy(), cmap="cividis", vmin=0, vmax=100, aspect="auto")
        for row, values in enumerate(table.tolist()):
            for column, value in enumerate(values):
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if value < 55 else "black")
        axes.set_xticks(range(len(constructions)), constructions, rotation=35, ha="right")
        axes.set_yticks(range(len(CLAIMS)), [claim.text + (f"\n(against {claim.against})" if claim.against else "") for claim in CLAIMS])
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        figure.colorbar(image, ax=axes, label="holds in % of the comparisons", fraction=0.03, pad=0.01)
        return save(figure, out, "rect4-claims")
