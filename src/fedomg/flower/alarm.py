"""Work that is broken off after a time."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutOfTimeError(BaseException):
    """Not an `Exception`: what is broken off must not take it for a fault of its own, and go on."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Breaks off what is done inside; not in a thread beside the main one, nor where the system has no such signals."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
