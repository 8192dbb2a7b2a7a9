"""The thread that ends the process when it must not live on."""

import os
import select
import signal
import threading
import traceback
from typing import Callable, List, Optional

from everbeat.worker import clock
from everbeat.worker.ending import emergency, say

# Something that is due at some time: called with the time, answers when to call it next.
Check = Callable[[float], Optional[float]]

# A look at everything at least so often, whatever the checks say.
_LONGEST_SECONDS = 1.0


class Watchdog(threading.Thread):
    """Watches the life descriptor, signals and due times.

    Runs no code of the user's, takes no lock that such code could hold for long, and needs nothing from the
    main thread, which may hang.
    """

    def __init__(self, life_fd: Optional[int], signalled: Callable[[int], None]) -> None:
        super().__init__(name="everbeat-watchdog", daemon=True)
        self._life_fd = life_fd
        self._signalled = signalled
        self._checks: List[Check] = []
        self._wake_in, self._wake_out = os.pipe()
        for fd in (self._wake_in, self._wake_out):
            os.set_blocking(fd, False)

    def catch_signals(self) -> None:
        """Has SIGTERM and SIGINT answered by this thread. To be called from the main thread.

        Python runs handlers in the main thread, between two of its instructions; the byte that a signal leaves
        in a pipe is seen at once.
        """
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)

    def watch(self, check: Check) -> None:
        self._checks.append(check)
        self.wake()

    def wake(self) -> None:
        """Has the checks looked at now: something became due earlier."""
        try:
            os.write(self._wake_out, b"\0")
        except BlockingIOError:
            pass  # Full: the thread wakes anyway.

    def run(self) -> None:
        try:
            self._watch()
        except BaseException:
            # A worker that nobody watches might outlive its lease.
            say(f"everbeat: the watchdog failed; please report this\n{traceback.format_exc()}")
            os._exit(1)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        if self._life_fd is not None:
            poll.register(self._life_fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll(self._pause() * 1000):
                if fd == self._life_fd:
                    self._look_at_life()
                else:
                    self._read_signals()

    def _pause(self) -> float:
        now = clock.now()
        due = [when for when in [check(now) for check in list(self._checks)] if when is not None]
        return max(0.0, min([when - now for when in due] + [_LONGEST_SECONDS]))

    def _look_at_life(self) -> None:
        assert self._life_fd is not None
        try:
            alive = os.read(self._life_fd, 64) != b""
        except BlockingIOError:
            alive = True
        except OSError:
            alive = False
        if not alive:
            emergency("server_gone")

    def _read_signals(self) -> None:
        for number in os.read(self._wake_in, 512):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._signalled(number)
