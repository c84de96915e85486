"""Ends a Python call that nobody waits for any more, by an exception raised inside its thread.

Python code gets it at its next step, so a loop that spins really ends. A call that sits in C code gets it when it
returns from there, which may be never: it stays hung, and counted as that.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between tries, for code that catches everything and goes on. Then it is left alone."""


class Abandoned(BaseException):
    """Raised inside a call that outlived its time limit. No `except Exception` catches it, `finally` runs."""


def end_soon(
    thread: threading.Thread,
    lock: threading.Lock,
    hangs: Callable[[], bool],
    ask: Callable[[], None] = lambda: None,
) -> None:
    """Raises Abandoned in `thread`, again and again, while `hangs()` is true under `lock`.

    The thread has to make `hangs()` false under the same lock, and to call `absorb` there: none comes after that. `ask`
    is called after each, for an Abandoned may also hit what the thread was about to do that with.
    """

    def insist() -> None:
        for pause in PAUSES_S:
            time.sleep(pause)
            with lock:
                if not hangs():
                    return
                _raise_in(thread)
            ask()

    threading.Thread(target=insist, name=f"{thread.name}-ender", daemon=True).start()


def absorb() -> None:
    """A place where an Abandoned that is on its way to this thread is raised, if there is one."""


def _raise_in(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Abandoned))
