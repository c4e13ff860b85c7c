"""A Flower grid in this process: every message becomes the bytes that a network would carry, and is answered by a ClientApp at once."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

CLIENT_RAISED = 2


class LocalGrid(Grid):
    """`contents` collects the distinct objects that were sent, as a SuperLink would store them."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self._app = app
        self._contexts = {
            100 + place: Context(1, 100 + place, {"partition-id": place, "num-partitions": nodes}, RecordDict(), {})
            for place in range(nodes)
        }
        self._replies: dict[str, Message] = {}
        self.contents: dict[str, bytes] = {}

    def configure(self, settings: dict[str, Any], place: int | None = None) -> None:
        """More for the configuration of a node, or of every node."""
        for found, context in enumerate(self._contexts.values()):
            if place in (None, found):
                context.node_config.update(settings)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **keys: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = identifier = str(uuid4())
        received = self._carry(message)
        received.metadata.__dict__["_message_id"] = identifier
        try:
            reply = self._app(received, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reply = Message(Error(CLIENT_RAISED, f"{type(error)}:<'{error}'>"), reply_to=received)  # as Flower words it
        self._replies[identifier] = self._carry(reply)
        return identifier

    def _carry(self, message: Message) -> Message:
        objects = get_all_nested_objects(message)
        contents = {identifier: found.deflate() for identifier, found in objects.items()}
        self.contents |= contents
        carried = inflate_object_from_contents(message.object_id, contents)
        assert isinstance(carried, Message)
        return carried

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """In an order that is not that of sending."""
        return [self._replies.pop(identifier) for identifier in sorted(message_ids, reverse=True) if identifier in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def lend(grid: Any) -> Callable[[int, int], Any]:
    """In the place of `Simulation`: experiments use this grid, and leave it running."""

    def opened(nodes: int, workers: int) -> Any:
        return SimpleNamespace(grid=grid, nodes=sorted(grid.get_node_ids())[:nodes], check=lambda: None, close=lambda: None)

    return opened
