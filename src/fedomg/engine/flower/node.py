"""The client end: a ClientApp that serves the clients of its node through an engine of its own."""

import logging
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.imports import import_object, reason
from fedomg.core.records import ClientState, Reply
from fedomg.engine.base import Engine, Site
from fedomg.engine.flower.messages import Request, SiteOf, read_request, write_failure, write_replies
from fedomg.engine.inline import InlineEngine
from fedomg.engine.states import ClientStates

EXCHANGE = "exchange"
QUERY = f"query.{EXCHANGE}"
"""The type of every message; which phase it is stands inside."""
logger = logging.getLogger("flwr")


def exchange(message: Message, context: Context) -> Message:
    return Message(answer(message.content, _serve), reply_to=message)


def answer(content: RecordDict, serve: Callable[[Request], RecordDict]) -> RecordDict:
    """Whatever goes wrong is told to the server, with the difference between what its user can mend and what not, and stands in the log."""
    try:
        return serve(read_request(content))
    except UserError as error:
        logger.warning("the server is told: %s", error)
        return write_failure(refused=str(error))
    except Exception as error:
        logger.exception("the server is told: %s", reason(error))
        return write_failure(error=traceback.format_exc(), reason=reason(error))


def _serve(request: Request) -> RecordDict:
    """The states come with the message and go back where they have changed: whoever simulates keeps them in one place."""
    return write_replies(*work(in_process(_site(request.site), request), request, request.states))


def in_process(site: Site, request: Request) -> Engine:
    return InlineEngine(site, request.parameters, ClientStates(), torch.device("cpu"))


def work(engine: Engine, request: Request, states: Mapping[int, ClientState]) -> tuple[list[Reply], Tensor | None, dict[int, ClientState]]:
    """The replies of a node's clients, their updates, and those of their states that have changed."""
    for client, state in states.items():
        engine.states.put(client, state)
    engine.states.changed()
    rows = engine.matrix(len(request.broadcasts)) if request.with_rows else None
    replies = engine.exchange(request.phase, request.broadcasts, rows)
    return replies, rows, engine.states.changed()


@lru_cache(maxsize=1)
def _site(site: SiteOf) -> Site:
    """Made once in each process of a node."""
    made: Site = import_object("site", site.factory)(site.configuration)
    return made


app = ClientApp()
app.query(EXCHANGE)(exchange)
