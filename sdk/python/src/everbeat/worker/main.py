"""One worker process, from its start to its exit."""

import asyncio
import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from types import TracebackType
from typing import BinaryIO, List, NoReturn, Optional

from everbeat._version import __version__
from everbeat.app import App
from everbeat.worker import clock, load, logs, settings
from everbeat.worker.attempts import Attempts
from everbeat.worker.ending import emergency, leave, say
from everbeat.worker.link import Identity, Link
from everbeat.worker.outbox import Outbox
from everbeat.worker.perform import Performer
from everbeat.worker.pulse import FIRST_TTL_SECONDS, Pulse
from everbeat.worker.reload import Reloader
from everbeat.worker.watchdog import Watchdog

# What the user's code does at exit may take so long; then the process ends without it.
_EXIT_SECONDS = 5.0


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """``python -m everbeat.worker``."""
    Process(settings.read(sys.argv[1:] if arguments is None else arguments, os.environ)).run()


class Process:
    """Starts the threads, answers signals, and ends the process."""

    def __init__(self, chosen: settings.Settings) -> None:
        self._settings = chosen
        self._link: Optional[Link] = None
        self._signals = 0
        self._code = 0
        self._leave_at: Optional[float] = None
        self._watchdog = Watchdog(chosen.life_fd, self._signalled)
        self._watchdog.watch(self._check_exit)
        self._reloader = Reloader(chosen.app, chosen.is_remote) if chosen.reload else None
        self._dump: Optional[BinaryIO] = None

    def run(self) -> NoReturn:
        _write_lines_at_once()
        self._dump_on_request()
        self._watchdog.catch_signals()
        self._watchdog.start()
        app = self._load()
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._start_link(app, loop)
        loop.run_forever()
        _end_tasks(loop)
        if self._reloader is not None and self._reloader.is_due:
            self._reloader.start_anew()
        self._leave_at = clock.now() + _EXIT_SECONDS
        self._watchdog.wake()
        sys.exit(self._code)

    def _load(self) -> App:  # noqa: RET503 - every other way ends the process
        try:
            return load.load(self._settings.app)
        except load.NotFound as error:
            say(f"everbeat: {error}")
        except BaseException as error:
            trace = "".join(traceback.format_exception(type(error), error, _users(error)))
            say(f"{trace}everbeat: {self._settings.app!r} cannot be imported: {type(error).__name__}: {error}")
        if self._reloader is not None:
            say("everbeat: waiting for a change")
            self._reloader.wait_and_start_anew()
        leave(2)

    def _start_link(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        chosen = self._settings
        outbox = Outbox()
        attempts = Attempts(outbox)
        performer = Performer(app.tasks, attempts, outbox, loop)
        logs.set_up(outbox, show_tasks=chosen.is_remote)

        def lost() -> None:
            if chosen.is_remote and not chosen.exit_on_loss:
                link.start_anew()
            else:
                attempts.cancel_all()
                emergency("no_ping")

        def ended(code: int) -> None:
            self._code = code
            # An async function that blocks the loop would keep the process from ending.
            self._leave_at = clock.now() + _EXIT_SECONDS
            self._watchdog.wake()
            loop.call_soon_threadsafe(loop.stop)

        pulse = Pulse(attempts, lost, None if chosen.is_remote else FIRST_TTL_SECONDS)
        link = Link(
            chosen.target,
            _identity(chosen, app),
            outbox,
            attempts,
            performer,
            pulse,
            loop,
            self._watchdog.wake,
            ended,
        )
        self._watchdog.watch(pulse.check)
        self._watchdog.watch(link.check)
        if self._reloader is not None:
            self._reloader.start(link.drain)
        self._link = link
        link.start()

    def _signalled(self, number: int) -> None:
        """In the watchdog's thread."""
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        if self._reloader is not None:
            self._reloader.stop()
        if self._link is not None:
            self._link.drain()
        else:
            leave(0)  # Nothing has begun: the import of the app may take for ever.

    def _check_exit(self, now: float) -> Optional[float]:
        if self._leave_at is not None and now >= self._leave_at:
            say(f"everbeat: threads of the app still run {_EXIT_SECONDS:.0f} s after the end; leaving them")
            leave(self._code)
        return self._leave_at

    def _dump_on_request(self) -> None:
        """Has stacks written on SIGUSR1, also while C code holds the interpreter's lock."""
        faulthandler.enable()
        path = self._settings.dump_path
        if path:
            try:
                self._dump = open(path, "ab", buffering=0)  # noqa: SIM115
            except OSError as error:
                say(f"everbeat: stacks cannot be written on request: {error}")
                return
            faulthandler.register(signal.SIGUSR1, file=self._dump, all_threads=True, chain=False)


def _identity(chosen: settings.Settings, app: App) -> Identity:
    return Identity(
        pool=chosen.pool,
        secret=chosen.secret,
        sdk=f"everbeat-python {__version__} (Python {sys.version.split()[0]})",
        tasks=tuple(app.tasks),
        graphs=tuple(json.dumps(graph.definition()) for graph in app.graphs),
        flows=tuple(json.dumps(flow.definition()) for flow in app.flows),
        schedules=tuple(json.dumps(schedule.definition()) for schedule in app.schedules),
        slots=chosen.slots,
        queues=chosen.queues,
        host=socket.gethostname(),
    )


def _write_lines_at_once() -> None:
    """The server reads output line by line, and an emergency does not empty buffers."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Lets what still runs in the loop clean up: attempts that nobody awaits, and tasks that the app began."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _users(error: BaseException) -> Optional[TracebackType]:
    """The traceback from where the user's module begins."""
    frames = error.__traceback__
    ours = (__name__, load.__name__, "importlib", "importlib._bootstrap", "importlib._bootstrap_external")
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in ours:
        frames = frames.tb_next
    return frames
