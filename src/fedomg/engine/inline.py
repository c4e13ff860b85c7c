"""The in-process engine: clients take turns in this process, on one torch thread."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.core.threads import one_thread
from fedomg.engine.base import Site
from fedomg.engine.states import ClientStates, changed


class InlineEngine:
    def __init__(self, site: Site, parameters: int, states: ClientStates, device: torch.device) -> None:
        self.site = site
        self.states = states
        self._device = device
        self._matrix = torch.empty(0, parameters, device=device)

    def matrix(self, rows: int) -> Tensor:
        if len(self._matrix) < rows:
            self._matrix = self._matrix.new_empty(rows, self._matrix.shape[1])
        return self._matrix[:rows]

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        replies = []
        with one_thread():
            for position, client in enumerate(sorted(messages)):
                before = self._state(client)
                row = None if rows is None else rows[position]
                try:
                    reply, after = self.site.handle(phase, client, messages[client], before, row)
                except Exception as error:
                    error.add_note(f"while client {client} was in phase {phase!r}")
                    raise
                if changed(before, after):
                    self.states.put(client, after)
                replies.append(reply)
        return replies

    def _state(self, client: int) -> ClientState:
        """Where the model is: states that come from a file are not."""
        return {name: tensor.to(self._device) for name, tensor in self.states.of(client).items()}

    def close(self) -> None:
        pass
