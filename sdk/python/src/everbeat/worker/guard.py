"""The kernel's hand on the process, for when no thread of Python can run.

C code that holds the interpreter's lock keeps the watchdog from ending the process. Work whose effects are not fenced
must not go on then when nobody vouches for it any more: timers of the kernel end the process, unless a ping puts them
off.
"""

import ctypes
import os
import signal
import threading
from typing import List, Optional, Tuple

from everbeat.worker import clock
from everbeat.worker.ending import say

# The server takes this signal for what it is. Its default is to end the process; nobody else sends it.
TIMER_SIGNAL = 62

# When the timers fire, as shares of the time that is vouched for. The second one ends a process whose code handles,
# ignores or blocks the first.
_SHARES = ((TIMER_SIGNAL, 0.98), (int(signal.SIGKILL), 1.0))

_TIMER_ABSTIME = 1


class Guard:
    """Armed while work runs that must stop when nobody vouches for it.

    Timers of this kind belong to the process: a forked child has none, and `exec` takes them away.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timers: Optional[List[Tuple[_Timer, float]]] = None
        self._running = 0
        self._vouched: Optional[Tuple[float, float]] = None

    def vouch(self, since: float, seconds: float) -> None:
        """Somebody vouches for the work so long."""
        with self._lock:
            self._vouched = (since, seconds)
            self._arm()

    def begin(self) -> None:
        """Such work begins."""
        with self._lock:
            self._running += 1
            self._arm()

    def end(self) -> None:
        """Such work has ended."""
        with self._lock:
            self._running -= 1
            if not self._running:
                for timer, _ in self._timers or []:
                    timer.disarm()

    def _arm(self) -> None:
        if not self._running or self._vouched is None:
            return
        if self._timers is None:
            self._timers = _make_timers()
        since, seconds = self._vouched
        for timer, share in self._timers:
            timer.put_off(since + seconds * share)


class _Event(ctypes.Structure):
    """``struct sigevent``: 64 bytes, of which a signal needs the first 16."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``: how often, and when first."""

    _fields_ = (
        ("every_seconds", ctypes.c_long),
        ("every_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class _Timer:
    """A timer of the kernel that sends this process a signal."""

    def __init__(self, libc: ctypes.CDLL, number: int) -> None:
        self._libc = libc
        self._id = ctypes.c_void_p()
        event = _Event(signo=number, notify=0)
        if libc.timer_create(clock.CLOCK, ctypes.byref(event), ctypes.byref(self._id)) != 0:
            raise OSError(ctypes.get_errno(), "timer_create failed")

    def put_off(self, when: float) -> None:
        """To this time of `clock.now`; one that is past ends the process now."""
        whole = int(when)
        self._set(_Times(seconds=whole, nanoseconds=max(1, int((when - whole) * 1e9))))

    def disarm(self) -> None:
        self._set(_Times())

    def _set(self, times: _Times) -> None:
        if self._libc.timer_settime(self._id, _TIMER_ABSTIME, ctypes.byref(times), None) != 0:
            say(f"everbeat: a timer of the kernel cannot be set: error {ctypes.get_errno()}")


def _make_timers() -> List[Tuple[_Timer, float]]:
    try:
        if os.getpid() == 1:
            raise OSError("the first process of a container is not ended by signals; start it with an init")
        libc = _libc()
        return [(_Timer(libc, number), share) for number, share in _SHARES]
    except (OSError, AttributeError) as error:
        say(f"everbeat: work that holds the interpreter's lock is not ended when nobody vouches for it: {error}")
        return []


def _libc() -> ctypes.CDLL:
    if ctypes.sizeof(ctypes.c_long) != 8:
        raise OSError("timers are used on 64-bit systems only")
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "timer_create"):
        libc = ctypes.CDLL("librt.so.1", use_errno=True)  # Before glibc 2.34.
    libc.timer_create.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc.timer_settime.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return libc
