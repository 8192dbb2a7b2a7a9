"""An attempt without a server."""

import concurrent.futures
import json
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional

from everbeat.context import AsyncContext, Beat, Context, Session
from everbeat.errors import Cancelled
from everbeat.values import encode


class FakeAttempt:
    """Stands behind a context in tests of a task, and remembers what the task said.

    ::

        attempt = FakeAttempt(checkpoint={"page": 3})
        assert import_pages(attempt.context, url) == 12
        assert attempt.checkpoints[-1] == {"page": 12}

    For a flow, say what its run is told: ``FakeAttempt(flow="orders", cursor=5)``.
    """

    def __init__(
        self,
        *,
        task: str = "task",
        run_id: str = "run",
        attempt: int = 1,
        args: Any = None,
        checkpoint: Any = None,
        execution_id: Optional[str] = None,
        node: Optional[str] = None,
        session: Optional[Session] = None,
        time_left: Optional[float] = None,
        flow: Optional[str] = None,
        due_at: Optional[datetime] = None,
        cause: str = "clock",
        cursor: Any = None,
        from_: Any = None,
        to: Any = None,
    ) -> None:
        self.task = task
        self.run_id = run_id
        self.number = attempt
        if flow is not None:
            args = _told(flow, due_at or datetime.now(timezone.utc), cause, cursor, {"from": from_, "to": to})
        self.args_json = None if args is None else encode(args, "args")
        self.checkpoint_json = None if checkpoint is None else encode(checkpoint, "the checkpoint")
        self.execution_id = execution_id
        self.node = node
        self.session = session
        self.time_left = time_left
        self.cancelled = False
        self.draining = False
        #: What each heartbeat said, and each checkpoint that was stored.
        self.beats: List[Beat] = []
        self.checkpoints: List[Any] = []

    @property
    def context(self) -> Context:
        """For a plain function or a generator."""
        return Context(self)

    @property
    def async_context(self) -> AsyncContext:
        """For an async function or an async generator."""
        return AsyncContext(self)

    def cancel(self) -> None:
        """The next heartbeat raises `everbeat.Cancelled`."""
        self.cancelled = True

    def beat(self, beat: Beat) -> None:
        if self.cancelled:
            raise Cancelled(f"run {self.run_id} was told to stop")
        self.beats.append(beat)

    def save(self, beat: Beat, checkpoint: Any) -> "concurrent.futures.Future[None]":
        self.beat(beat)
        self.checkpoints.append(json.loads(encode(checkpoint, "the checkpoint")))
        stored: concurrent.futures.Future[None] = concurrent.futures.Future()
        stored.set_result(None)
        return stored


def _told(flow: str, due_at: datetime, cause: str, cursor: Any, ends: Dict[str, Any]) -> Dict[str, Any]:
    """What the run of a flow is told beside its configuration."""
    told = {"flow": flow, "due_at": due_at.isoformat(), "cause": cause}
    part = {name: end for name, end in ends.items() if end is not None}
    return {**told, **({"cursor": cursor} if cursor is not None else {}), **({"range": part} if part else {})}
