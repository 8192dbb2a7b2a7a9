"""Starts the worker anew when its source files change; for development."""

import os
import sys
import threading
import time
from typing import Callable, Dict, Iterator, List, NoReturn

from everbeat.worker.ending import leave, say

_POLL_SECONDS = 0.3

# A tree with more files is not looked at to its end.
_MOST_FILES = 10_000

_SKIPPED = {"node_modules", "__pycache__", "site-packages", "dist-packages", "everbeat-data"}


class Reloader:
    """Looks at the modification times of source files: below the app's folder, and of what was imported.

    A remote worker replaces itself by a new process. A worker of a pool exits: the pool starts its successor.
    """

    def __init__(self, app: str, replaces_itself: bool) -> None:
        place = app.partition(":")[0]
        self._folder = os.path.dirname(os.path.abspath(place)) if place.endswith(".py") else os.getcwd()
        self._replaces_itself = replaces_itself
        self._seen = self._times()
        # A change was found, and the worker should start anew once it is drained.
        self.is_due = False
        self._ended = threading.Event()

    def start(self, drain: Callable[[], None]) -> None:
        """Has the worker drained after the first change."""
        self._seen = {**self._times(), **self._seen}  # With what was imported meanwhile.

        def watch() -> None:
            if self._wait_for_change():
                self.is_due = True
                drain()

        threading.Thread(target=watch, name="everbeat-reload", daemon=True).start()

    def stop(self) -> None:
        """The worker is to end for good."""
        self.is_due = False
        self._ended.set()

    def wait_and_start_anew(self) -> NoReturn:
        """Of an app that could not be imported."""
        self._wait_for_change()
        self.start_anew()

    def start_anew(self) -> NoReturn:
        if not self._replaces_itself:
            leave(0)
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *_interpreter_flags(), "-m", "everbeat.worker", *sys.argv[1:]])

    def _wait_for_change(self) -> bool:
        while not self._ended.wait(_POLL_SECONDS):
            times = self._times()
            if times != self._seen:
                changed = sorted(path for path in {**self._seen, **times} if self._seen.get(path) != times.get(path))
                say(f"everbeat: {', '.join(map(os.path.relpath, changed[:3]))} changed; starting anew")
                self._let_settle(times)
                return True
        return False

    def _let_settle(self, times: Dict[str, int]) -> None:
        """An editor may still be writing."""
        while True:
            time.sleep(_POLL_SECONDS)
            before, times = times, self._times()
            if before == times:
                return

    def _times(self) -> Dict[str, int]:
        times = {}
        for path in {*_sources_below(self._folder), *_imported()}:
            try:
                times[path] = os.stat(path).st_mtime_ns
            except OSError:
                continue  # Gone meanwhile: a change of its own.
        return times


def _sources_below(folder: str) -> Iterator[str]:
    count = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                count += 1
                yield os.path.join(parent, name)
        if count > _MOST_FILES:
            return


def _imported() -> Iterator[str]:
    """Files of modules that belong neither to Python nor to installed packages."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not path.startswith(sys.base_prefix):
            path = os.path.abspath(path)
            if not _SKIPPED.intersection(path.split(os.sep)):
                yield path


def _interpreter_flags() -> List[str]:
    """Flags like ``-X dev`` and ``-W error`` that this process was started with, as far as Python tells."""
    given: List[str] = getattr(sys, "orig_argv", [sys.executable])[1:]
    return given[: given.index("-m")] if "-m" in given else []
