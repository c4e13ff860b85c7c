import os
import signal

import pytest

from fedomg.core.processes import interrupts_kept_from_children


def test_an_interrupt_takes_effect_when_the_child_has_started() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_kept_from_children():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("start")
    assert done == ["start"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
