"""The in-process engine."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.engine.inline import InlineEngine
from fedomg.engine.states import ClientStates


class _Looks:
    """Keeps what it is given as a state."""

    def __init__(self) -> None:
        self.seen: dict[int, ClientState] = {}

    def handle(self, phase: str, client: int, broadcast: Broadcast, state: ClientState, row: Tensor | None) -> tuple[Reply, ClientState]:
        self.seen[client] = state
        return Reply(client), state


def test_states_from_files_go_where_the_model_is(tmp_path: Path) -> None:
    """On a device that every machine has, and that is not the processor."""
    save_file({"optimizer/fit/shared/momentum_buffer": torch.ones(3)}, tmp_path / "client")
    device, states, site = torch.device("meta"), ClientStates(), _Looks()
    states.restore({0: tmp_path / "client"})
    engine = InlineEngine(site, 3, states, device)
    engine.exchange("fit", {client: Broadcast(1, torch.zeros(3, device=device)) for client in (0, 1)})
    assert [tensor.device for tensor in site.seen[0].values()] == [device]
    assert site.seen[1] == {}
    assert states.changed() == {}
