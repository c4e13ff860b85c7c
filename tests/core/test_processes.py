import os
import signal

import pytest

from fedomg.core.processes import interrupts_kept_from_children


def _start(done: list[str]) -> None:
    with interrupts_kept_from_children():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("started")


def test_an_interrupt_takes_effect_when_the_child_has_started() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _start(done)
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
