"""What a pong says about the process, and the stacks of its threads."""

import asyncio
import os
import sys
import threading
import time
import traceback
from typing import List, Optional

from everbeat.worker import clock

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def cpu_ms() -> int:
    return int(time.process_time() * 1000)


class LoopLag:
    """How late the event loop is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: Optional[float] = None
        self._lag = 0.0

    def look(self) -> int:
        """Milliseconds that the loop took to answer when it was last asked, or has taken so far."""
        asked = self._asked
        if asked is not None:
            return int((clock.now() - asked) * 1000)
        self._asked = clock.now()
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            self._asked = None  # The loop is closed.
        return int(self._lag * 1000)

    def _answer(self) -> None:
        if self._asked is not None:
            self._lag = clock.now() - self._asked
            self._asked = None


def stacks(loop: asyncio.AbstractEventLoop) -> str:
    """The stacks of all threads, and where the tasks of the event loop wait."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: List[str] = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"Thread {names.get(ident, ident)}:\n")
        parts += traceback.format_stack(frame)
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:
        tasks = set()  # The loop changed its tasks all the while.
    for task in tasks:
        parts.append(f"asyncio task {task.get_name()}:\n")
        for frame in task.get_stack(limit=20):
            parts += traceback.format_stack(frame, limit=1)
    return "".join(parts)
