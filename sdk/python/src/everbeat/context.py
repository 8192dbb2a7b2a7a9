"""What a task knows about its attempt, and how it speaks of it."""

import asyncio
import concurrent.futures
import json
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Dict, Optional, Protocol, Union, cast

Seconds = Union[int, float, timedelta]


@dataclass(frozen=True)
class Beat:
    """What one heartbeat says."""

    done: Optional[int] = None
    total: Optional[int] = None
    note: Optional[str] = None
    next_within: Optional[float] = None


@dataclass(frozen=True)
class Session:
    """The session that a run belongs to: one worker performs the runs of a session.

    Keep what is loaded, opened or warm under ``id``, and drop what is kept under another id of the same ``key``.
    """

    #: The key that the run was submitted with.
    key: str
    #: Another one each time that a session of this key begins, on this worker or on another.
    id: str
    #: Whether this is the first attempt of the session. A worker may then still hold something of an earlier one.
    is_new: bool


class Attempt(Protocol):
    """What a context stands on: an attempt of a worker, or one that a test made up."""

    @property
    def run_id(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def task(self) -> str: ...
    @property
    def args_json(self) -> Optional[str]: ...
    @property
    def checkpoint_json(self) -> Optional[str]: ...
    @property
    def execution_id(self) -> Optional[str]: ...
    @property
    def node(self) -> Optional[str]: ...
    @property
    def session(self) -> Optional[Session]: ...
    @property
    def cancelled(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def time_left(self) -> Optional[float]: ...

    def beat(self, beat: Beat) -> None:
        """Says a heartbeat; raises `Cancelled` if the attempt should stop."""

    def save(self, beat: Beat, checkpoint: Any) -> "concurrent.futures.Future[None]":
        """Says a heartbeat with a checkpoint; the future is done when the checkpoint is stored."""


class _Facts:
    """What contexts of plain and of async functions have in common."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._log = logging.getLogger(f"everbeat.task.{attempt.task}")

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._attempt.run_id

    @property
    def attempt(self) -> int:
        """The number of this attempt of the run, from 1."""
        return self._attempt.number

    @property
    def fence(self) -> int:
        """A number that rises with every attempt of the run.

        Hand it to whatever the task writes to, and let that refuse a lower one: then an attempt that was
        given up and wakes again cannot overwrite what its successor wrote.
        """
        return self._attempt.number

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._attempt.task

    @property
    def args(self) -> Any:
        """What a graph's node, or the run of a flow or schedule, is told besides the input; ``None`` if nothing."""
        text = self._attempt.args_json
        return None if text is None else json.loads(text)

    @property
    def execution_id(self) -> Optional[str]:
        """The execution whose node is computed; ``None`` for a run of its own."""
        return self._attempt.execution_id

    @property
    def node(self) -> Optional[str]:
        """The node that is computed; ``None`` for a run of its own."""
        return self._attempt.node

    @property
    def session(self) -> Optional[Session]:
        """The session that the run belongs to, if any."""
        return self._attempt.session

    @property
    def flow(self) -> Optional[str]:
        """The name of the flow that the run belongs to; ``None`` if it is not one of a flow's."""
        return cast(Optional[str], self._occasion().get("flow"))

    @property
    def schedule(self) -> Optional[str]:
        """The name of the schedule that the run belongs to; ``None`` if it is not one of a schedule's."""
        return cast(Optional[str], self._occasion().get("schedule"))

    @property
    def due_at(self) -> Optional[datetime]:
        """When the run of a flow or schedule was due; the same in every attempt."""
        due = self._occasion().get("due_at")
        return None if due is None else datetime.fromisoformat(due.replace("Z", "+00:00"))

    @property
    def cause(self) -> Optional[str]:
        """Why the run of a flow or schedule is due: ``clock``, ``asked``, or ``after`` another has succeeded."""
        return cast(Optional[str], self._occasion().get("cause"))

    @property
    def cursor(self) -> Any:
        """Where a flow goes on: the last checkpoint of the run before this one, or what somebody has asked for.

        ``None`` if there is neither. An earlier attempt of this run may have come further:
        ``ctx.resume(ctx.cursor)`` looks at both.
        """
        return self._occasion().get("cursor")

    @property
    def from_(self) -> Any:
        """Where the part of the source begins that somebody has asked for with a backfill; ``None`` if nobody has."""
        return (self._occasion().get("range") or {}).get("from")

    @property
    def to(self) -> Any:
        """Where that part ends."""
        return (self._occasion().get("range") or {}).get("to")

    def _occasion(self) -> Dict[str, Any]:
        """What the run of a flow or schedule is told. The args of a graph's node are something else."""
        args = None if self._attempt.execution_id is not None else self.args
        return args if isinstance(args, dict) else {}

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was told to stop. The next heartbeat raises `Cancelled`."""
        return self._attempt.cancelled

    @property
    def draining(self) -> bool:
        """Whether the worker is about to go.

        The attempt may finish. One that would take long should store a checkpoint and return or raise: it is
        taken up by another worker.
        """
        return self._attempt.draining

    @property
    def time_left(self) -> Optional[float]:
        """Seconds until the deadline of this attempt; ``None`` if there is none."""
        return self._attempt.time_left

    @property
    def log(self) -> logging.Logger:
        """A logger whose records belong to this run.

        So do the records that any other logger makes while the task runs.
        """
        return self._log

    def resume(self, default: Any = None) -> Any:
        """The last checkpoint that an earlier attempt of the run stored, or ``default``."""
        text = self._attempt.checkpoint_json
        return default if text is None else json.loads(text)


class Context(_Facts):
    """What a plain function or a generator gets as its first argument."""

    def heartbeat(
        self,
        done: Optional[int] = None,
        total: Optional[int] = None,
        note: Optional[str] = None,
        checkpoint: Any = None,
        next_within: Optional[Seconds] = None,
    ) -> None:
        """Says that the work goes on, how far it is, and from where it could be taken up.

        Without a checkpoint it returns at once, and may be called as often as you like: of several within
        50 ms the last is sent. With one it returns when the checkpoint is stored, so that a later attempt
        finds it with ``ctx.resume()``; any JSON but ``None`` will do.

        ``next_within`` announces silence: nobody worries until it is over.

        Raises `Cancelled` if the attempt should stop; a checkpoint given with that call is not stored then.
        Raises `CheckpointRefused` if the server cannot store it, and `everbeat.NotJson` if it is no JSON.
        """
        beat = Beat(done, total, note, _seconds(next_within))
        if checkpoint is None:
            self._attempt.beat(beat)
        else:
            self._attempt.save(beat, checkpoint).result()


class AsyncContext(_Facts):
    """What an async function or an async generator gets as its first argument."""

    async def heartbeat(
        self,
        done: Optional[int] = None,
        total: Optional[int] = None,
        note: Optional[str] = None,
        checkpoint: Any = None,
        next_within: Optional[Seconds] = None,
    ) -> None:
        """As ``Context.heartbeat``, but awaited: ``await ctx.heartbeat(done=3, total=10)``.

        Each call also lets the event loop run other things.
        """
        beat = Beat(done, total, note, _seconds(next_within))
        if checkpoint is None:
            self._attempt.beat(beat)
            await asyncio.sleep(0)
        else:
            await asyncio.wrap_future(self._attempt.save(beat, checkpoint))


def _seconds(duration: Optional[Seconds]) -> Optional[float]:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return duration
