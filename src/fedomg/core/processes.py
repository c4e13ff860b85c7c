"""Processes that this one starts: none outlives it, and Ctrl-C is its own affair."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType

Spawned: type[BaseProcess] = multiprocessing.get_context("spawn").Process
"""Children that import what they need for themselves."""


def copies_of_one(*imports: str) -> type[BaseProcess]:
    """Children that need not import these modules: one process that starts now does, and each child is a copy of it.

    It has no threads, as this process may have. Where the system cannot copy processes, children import for themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return Spawned
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imports))
    with interrupts_kept_from_children():
        forkserver.ensure_running()
    return context.Process


@contextmanager
def script_kept_from_children() -> Iterator[None]:
    """A child would run this process's script again as far as that defines things, and a script may import much."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def interrupts_kept_from_children() -> Iterator[None]:
    """Ctrl-C reaches this process, which then ends its children; they would die of it with a traceback, even while they start.

    It takes effect here when the start is done: a child that is sent half of what it starts from would complain of that.
    """
    with _interrupts_postponed():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        resource_tracker.ensure_running()  # its own start would end the blocking
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupts_postponed() -> Iterator[None]:
    """Blocking the signal in this thread is not enough: another thread may take it, and Python then interrupts the main one."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, came[0])


def follow_the_parent() -> None:
    """To be called in a child: it ignores Ctrl-C, and leaves when its parent ends, whatever it is busy with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()


def _leave_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def end(process: BaseProcess, patience: float = 0.0) -> str:
    """Ends a child, if it has not ended by itself after some seconds, and says how it did."""
    process.join(patience)
    if process.is_alive():
        process.kill()
        process.join()
    code = process.exitcode or 0
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
