"""The client half of a method: which parameters are whose, what a client does in a phase, how its model answers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedomg.core.params import Group, Tensors, clone
from fedomg.core.records import ClientState, Reply
from fedomg.local.loop import Progress, Stage, Visit, train
from fedomg.local.terms import cross_entropy
from fedomg.models.split import SplitModel

PERSONAL = "personal"
BUFFER = "buffers/"

Predictor = Callable[[Tensor], Tensor]


class Trainer:
    """Plain local SGD on the whole model. A method overrides only what it changes."""

    personalises = False
    """Whether the personalised view differs from the global one."""

    def module(self, model: SplitModel) -> nn.Module:
        """The model that clients train, with what the method adds to it."""
        return model

    def group_of(self, name: str) -> Group:
        return Group.SHARED

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(cross_entropy),)

    def run(self, phase: str, visit: Visit, keep_buffers: bool, row: Tensor | None) -> tuple[Reply, ClientState]:
        """Trains from the broadcast; writes the update into `row` and returns what the client remembers."""
        load(visit)
        progress, remembered = self.fit(visit)
        model = visit.model
        update = torch.sub(model.shared, visit.broadcast.shared, out=row) if row is not None else None
        buffers = clone(model.buffers)
        state = dict(remembered)
        if len(model.values[Group.PERSONAL]):
            state[PERSONAL] = model.values[Group.PERSONAL].clone()
        if keep_buffers:
            state |= {BUFFER + name: value for name, value in buffers.items()}
        reply = Reply(
            client=visit.client.id,
            samples=len(visit.client.train),
            steps=progress.steps,
            loss=progress.loss,
            update=update,
            buffers={} if keep_buffers else buffers,
            extras=self.extras(visit),
        )
        return reply, state

    def fit(self, visit: Visit) -> tuple[Progress, ClientState]:
        """All stages of local training on the loaded model."""
        steps, loss, remembered = 0, 0.0, ClientState()
        for stage in self.stages(visit):
            progress, kept = train(stage, visit, visit.state)
            steps, loss, remembered = steps + progress.steps, progress.loss, remembered | kept
        return Progress(steps, loss), remembered

    def extras(self, visit: Visit) -> Tensors:
        """What the reply carries beside the update."""
        return {}

    def personalise(self, visit: Visit) -> None:
        """Turns the loaded model into the client's own, in place."""

    def predictor(self, visit: Visit) -> Predictor:
        """How the client's own model answers, as logits."""
        return visit.model.module

    def global_predictor(self, visit: Visit) -> Predictor:
        """How the global model answers without anything of the client."""
        return visit.model.module


def load(visit: Visit, personal: bool = True) -> None:
    """The model as the client starts from it: what was broadcast, its own part, its own buffers where those stay local.

    Without `personal` the client's own part is left out: the global model.
    """
    own = {name.removeprefix(BUFFER): value for name, value in visit.state.items() if name.startswith(BUFFER)}
    part = visit.state.get(PERSONAL) if personal else None
    visit.model.load(visit.broadcast.shared, part, {**visit.broadcast.buffers, **own})
