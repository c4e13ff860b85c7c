"""The client half of a method: which parameters are whose, what a client does in a phase, how its model answers."""

from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from fedomg.core.params import Group, Tensors, clone, is_finite
from fedomg.core.records import FIT, ClientState, Reply
from fedomg.local.loop import Progress, Stage, Visit, train
from fedomg.local.options import LocalOptions
from fedomg.models.split import SplitModel

PERSONAL, AUXILIARY = "personal", "auxiliary"
BUFFER = "buffers/"

BufferPolicy = Literal["average", "keep", "local"]
Predictor = Callable[[Tensor], Tensor]
OptionsT = TypeVar("OptionsT", bound=LocalOptions)


class Trainer(Generic[OptionsT]):
    """Plain local SGD on the whole model. A method overrides only what it changes."""

    personalises = False
    """Whether the personalised view differs from the global one."""

    answers_globally = True
    """Whether the shared parameters alone make a classifier; where not, validation asks the personal model."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def module(self, model: SplitModel) -> nn.Module:
        """The model that clients train, with what the method adds to it."""
        return model

    def group_of(self, name: str) -> Group:
        return Group.SHARED

    def arrive(self, visit: Visit) -> Tensors:
        """What the reply says of the model as it was received, before any training."""
        return {}

    def gather(self, phase: str, visit: Visit) -> Tensors:
        """What the client says of the model as it was received, in a phase that trains nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no phase {phase!r}")

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(),)

    def report(self, visit: Visit, progress: Progress) -> Tensors:
        """What the reply says of the trained model, beside the update."""
        return {}

    def remember(self, visit: Visit, progress: Progress) -> ClientState:
        """What the client keeps beside its personal parameters and optimizers."""
        return {}

    def run(self, phase: str, visit: Visit, buffers: BufferPolicy, row: Tensor | None) -> tuple[Reply, ClientState]:
        """Trains from the broadcast; writes the update into `row` and returns what the client remembers."""
        load(visit)
        if phase != FIT:
            return self._told(self.gather(phase, visit), visit), visit.state
        arrived = self.arrive(visit)
        return self.conclude(visit, arrived, *self.fit(visit), buffers, row)

    def conclude(
        self, visit: Visit, arrived: Tensors, progress: Progress, optimizers: ClientState, buffers: BufferPolicy, row: Tensor | None
    ) -> tuple[Reply, ClientState]:
        """What is sent of the trained model, and what the client remembers."""
        model = visit.model
        update = torch.sub(model.shared, visit.broadcast.shared, out=row)
        measured = clone(model.buffers) if buffers != "keep" else {}
        extras = arrived | self.report(visit, progress)
        state = optimizers | self.remember(visit, progress)
        if len(model.values[Group.PERSONAL]):
            state[PERSONAL] = model.values[Group.PERSONAL].clone()
        if buffers == "local":
            state |= {BUFFER + name: value for name, value in measured.items()}
        usable = all(is_finite(value) for value in (update, *measured.values(), *extras.values(), *state.values()))
        reply = Reply(
            client=visit.client.id,
            samples=len(visit.client.train),
            steps=progress.steps,
            loss=progress.loss,
            update=update,
            buffers=measured if buffers == "average" else {},
            extras=extras,
            usable=usable,
        )
        return reply, state if usable else visit.state  # a round that diverged leaves no trace in the client either

    def _told(self, extras: Tensors, visit: Visit) -> Reply:
        usable = all(is_finite(value) for value in extras.values())
        return Reply(visit.client.id, samples=len(visit.client.train), extras=extras, usable=usable)

    def fit(self, visit: Visit) -> tuple[Progress, ClientState]:
        """All stages of local training on the loaded model."""
        done, remembered = Progress(), ClientState()
        for stage in self.stages(visit):
            progress, kept = train(stage, visit, visit.state)
            done = done.then(progress)
            remembered |= kept
        return done, remembered

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

    A personal part that the server sends replaces the client's. Without `personal` it is left out: the global model.
    """
    own = {name.removeprefix(BUFFER): value for name, value in visit.state.items() if name.startswith(BUFFER)}
    part = visit.broadcast.extras.get(PERSONAL, visit.state.get(PERSONAL)) if personal else None
    visit.model.load(visit.broadcast.shared, part, {**visit.broadcast.buffers, **own}, visit.broadcast.extras.get(AUXILIARY))
