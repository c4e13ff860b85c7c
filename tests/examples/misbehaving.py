"""What a SuperNode runs in place of the example's ClientApp: the same, but for the rounds that the file beside its images names.

The file, `IMAGES.faults`, maps rounds to faults. An app's process serves one message, so what is patched here stays for one.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedomg.core.records import FIT
from fedomg.engine.flower.messages import read_request
from fedomg.flower.client import client_app
from fedomg.local.trainer import Trainer

sound = client_app()
app = ClientApp()


@app.query("census")
def census(message: Message, context: Context) -> Message:
    return sound(message, context)


@app.query("exchange")
def exchange(message: Message, context: Context) -> Message:
    request = read_request(message.content)
    file = Path(f"{context.node_config['data-root']}.faults")
    planned = json.loads(file.read_text()) if file.exists() else {}
    fault = planned.get(str(next(iter(request.broadcasts.values())).round)) if request.phase == FIT else None
    if fault == "raises":
        raise RuntimeError("the app's own\nfault")
    if fault in IN_TRAINING:
        Trainer.run = IN_TRAINING[fault]  # type: ignore[method-assign]
    reply = sound(message, context)
    if fault == "comes late":
        time.sleep(message.metadata.created_at + message.metadata.ttl + 1 - time.time())
    if fault in OF_THE_UPDATE:
        arrays = reply.content.array_records["fedomg"]
        OF_THE_UPDATE[fault](arrays, arrays["rows"].numpy())
    return reply


def _fails(*arguments: Any) -> NoReturn:
    raise OSError("the disk has gone")


def _dies(*arguments: Any) -> NoReturn:
    os._exit(1)


def _hangs(*arguments: Any) -> NoReturn:
    while True:
        time.sleep(1)


def _not_finite(arrays: ArrayRecord, rows: Any) -> None:
    arrays["rows"] = Array(np.full_like(rows, np.nan))


def _misshapen(arrays: ArrayRecord, rows: Any) -> None:
    arrays["rows"] = Array(rows.reshape(-1, 2))


def _truncated(arrays: ArrayRecord, rows: Any) -> None:
    whole = arrays["rows"]
    arrays["rows"] = Array(whole.dtype, whole.shape, whole.stype, whole.data[: len(whole.data) // 2])


def _huge(arrays: ArrayRecord, rows: Any) -> None:
    """Finite, and seen at once if it were taken."""
    arrays["rows"] = Array(np.full_like(rows, 1e6))


IN_TRAINING: dict[str, Callable[..., Any]] = {"fails": _fails, "dies": _dies, "hangs": _hangs}
OF_THE_UPDATE: dict[str, Callable[[ArrayRecord, Any], None]] = {
    "is not finite": _not_finite,
    "is misshapen": _misshapen,
    "is truncated": _truncated,
    "comes late": _huge,
}
