"""The vectorised engine: in this process, with the training of several clients in one, for an accelerator that a single client leaves idle.

It computes what the in-process engine computes up to rounding. Phases that train nothing are those of the in-process engine.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.core.threads import one_thread
from fedomg.engine.base import Site
from fedomg.engine.inline import InlineEngine
from fedomg.engine.states import ClientStates, changed


class Turn(NamedTuple):
    """One client's part in an exchange, as a site's `handle` takes it."""

    client: int
    broadcast: Broadcast
    state: ClientState
    row: Tensor | None


class JointSite(Site, Protocol):
    def trains(self, phase: str) -> bool:
        """Whether clients can be handled together in this phase."""
        ...

    def handle_together(self, phase: str, turns: Sequence[Turn]) -> list[tuple[Reply, ClientState]]:
        """What `handle` does for each."""
        ...


class VectorisedEngine(InlineEngine):
    """At most `together` clients train at once. Those of about the same size do: then few wait for others."""

    def __init__(
        self, site: JointSite, parameters: int, sizes: Mapping[int, int], together: int, states: ClientStates, device: torch.device
    ) -> None:
        super().__init__(site, parameters, states, device)
        self._joint, self._sizes, self._together = site, sizes, together

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        if not self._joint.trains(phase):
            return super().exchange(phase, messages, rows)
        row_of = {client: None if rows is None else rows[position] for position, client in enumerate(sorted(messages))}
        order = sorted(messages, key=lambda client: (-self._sizes[client], client))
        replies: dict[int, Reply] = {}
        with one_thread():
            for start in range(0, len(order), self._together):
                turns = [Turn(c, messages[c], self._state(c), row_of[c]) for c in order[start : start + self._together]]
                for turn, (reply, after) in zip(turns, self._joint.handle_together(phase, turns), strict=True):
                    if changed(turn.state, after):
                        self.states.put(turn.client, after)
                    replies[turn.client] = reply
        return [replies[client] for client in sorted(replies)]
