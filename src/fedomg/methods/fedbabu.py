"""FedBABU: only the body is trained and shared; the head stays as it was initialised, the same everywhere, until the end.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022. The personalised view fine-tunes
body and head on the client's training data, by plain SGD at the configured rate. It is costly and by default taken after the last round
alone; it works on a copy, so it may be taken at any time (published code fine-tunes the clients in place). Clients are weighted by
examples, where the authors' code takes the plain mean of equally large clients.
"""

from pydantic import Field

from fedomg.core.params import Group
from fedomg.local.loop import Stage, Visit, train
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry


class FedBabuOptions(LocalOptions):
    finetune_epochs: int = Field(10, ge=0, description="epochs of body and head before the personalised view")


class FedBabu(Trainer[FedBabuOptions]):
    personalises = True

    def group_of(self, name: str) -> Group:
        return Group.FROZEN if name.startswith("head.") else Group.SHARED

    def personalise(self, visit: Visit) -> None:
        everything = (Group.SHARED, Group.FROZEN)
        train(Stage(groups=everything, epochs=self.options.finetune_epochs, plain=True, name="finetune"), visit, {})


METHOD = Entry(
    "fedbabu",
    "the body alone is trained and shared, the head is fine-tuned at the end",
    "Oh et al., ICLR 2022",
    local=FedBabuOptions,
    trainer=FedBabu,
    personalised_every="last",
    needs_body=True,
)
