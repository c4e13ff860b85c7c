"""The in-process engine: clients take turns in this process, on one torch thread."""

from collections.abc import Mapping

from torch import Tensor

from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.core.threads import one_thread
from fedomg.engine.base import Site


class InlineEngine:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._states: dict[int, ClientState] = {}
        self._changed: set[int] = set()

    def exchange(self, phase: str, messages: Mapping[int, Broadcast], rows: Tensor | None = None) -> list[Reply]:
        replies = []
        with one_thread():
            for position, client in enumerate(sorted(messages)):
                before = self._states.get(client, {})
                row = None if rows is None else rows[position]
                reply, after = self._site.handle(phase, client, messages[client], before, row)
                if after is not before and (after or before):
                    self._states[client] = after
                    self._changed.add(client)
                replies.append(reply)
        return replies

    def changed_states(self) -> dict[int, ClientState]:
        changed = {client: self._states[client] for client in sorted(self._changed)}
        self._changed.clear()
        return changed

    def restore_states(self, states: Mapping[int, ClientState]) -> None:
        self._states = dict(states)
        self._changed.clear()
