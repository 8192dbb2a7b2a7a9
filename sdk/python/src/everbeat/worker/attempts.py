"""The attempts that this worker performs, or whose end the server has not answered."""

import concurrent.futures
import threading
from typing import Any, Callable, Dict, List, Optional

from everbeat.context import Beat, Session
from everbeat.errors import Cancelled, CheckpointRefused
from everbeat.values import encode
from everbeat.worker import clock
from everbeat.worker import worker_pb2 as pb
from everbeat.worker.guard import Guard
from everbeat.worker.outbox import Key, Outbox

_Verdict = pb.HeartbeatAnswer.Verdict

# Work that is handed over twice is performed once, as far back as this.
_REMEMBERED = 4096


class Attempt:
    """One attempt, from the work that arrived to the answer to its end. Stands behind a task's context."""

    def __init__(self, work: pb.Work, attempts: "Attempts", outbox: Outbox) -> None:
        self.work = work
        self.lease = work.lease
        self.key: Key = (work.lease.run_id, work.lease.attempt)
        self.cancelled = False
        self.draining = False
        # The server no longer awaits this attempt: nothing that it says counts.
        self.fenced = False
        # The function has ended.
        self.is_over = False
        self.ended: Optional[pb.FromWorker] = None
        # Called once when the attempt is cancelled; of an async function, cancels its asyncio task.
        self.on_cancel: Optional[Callable[[], None]] = None
        self.dropped_logs = 0
        self._attempts = attempts
        self._outbox = outbox
        self._began = clock.now()
        self._outputs = 0
        self._sequence = 0
        self._awaited: Dict[int, _Awaited] = {}

    # What a context asks.

    @property
    def run_id(self) -> str:
        return self.lease.run_id

    @property
    def number(self) -> int:
        return self.lease.attempt

    @property
    def task(self) -> str:
        return self.work.task

    @property
    def args_json(self) -> Optional[str]:
        return self.work.args if self.work.HasField("args") else None

    @property
    def checkpoint_json(self) -> Optional[str]:
        return self.work.checkpoint if self.work.HasField("checkpoint") else None

    @property
    def execution_id(self) -> Optional[str]:
        return self.work.execution_id if self.work.HasField("execution_id") else None

    @property
    def node(self) -> Optional[str]:
        return self.work.node if self.work.HasField("node") else None

    @property
    def session(self) -> Optional[Session]:
        if not self.work.HasField("session"):
            return None
        return Session(self.work.session, self.work.session_id, self.work.session_new)

    @property
    def time_left(self) -> Optional[float]:
        if not self.work.HasField("deadline_ms"):
            return None
        return max(0.0, self._began + self.work.deadline_ms / 1000 - clock.now())

    def beat(self, beat: Beat) -> None:
        with self._attempts.lock:
            self._raise_if_cancelled()
            self._attempts.progress += 1
            self._outbox.beat(self.key, pb.FromWorker(heartbeat=_heartbeat(self.lease, beat)))

    def save(self, beat: Beat, checkpoint: Any) -> "concurrent.futures.Future[None]":
        heartbeat = _heartbeat(self.lease, beat)
        heartbeat.checkpoint = encode(checkpoint, "the checkpoint")
        limit = self._attempts.message_limit
        if limit and heartbeat.ByteSize() > limit:
            raise CheckpointRefused(f"the checkpoint has {heartbeat.ByteSize()} bytes; the server takes {limit}")
        with self._attempts.lock:
            self._raise_if_cancelled()
            self._attempts.progress += 1
            self._sequence += 1
            heartbeat.sequence = self._sequence
            message = pb.FromWorker(heartbeat=heartbeat)
            awaited = self._awaited[self._sequence] = _Awaited(message)
            self._outbox.flush(self.key)
            self._outbox.put(message)
        return awaited.future

    def _raise_if_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled(f"run {self.run_id} was told to stop")

    # What its performer says.

    def next_output(self, item: str) -> pb.FromWorker:
        """The message for the next streamed item."""
        with self._attempts.lock:
            self._attempts.progress += 1
            self._outputs += 1
            return pb.FromWorker(output=pb.Output(lease=self.lease, sequence=self._outputs, item=item))

    def is_wanted(self) -> bool:
        return not self.cancelled

    def end(self, ended: pb.Ended) -> None:
        """The function has ended. Said once; kept until the server has answered."""
        with self._attempts.lock:
            assert not self.is_over, "an attempt ends once"
            self.is_over = True
            if self.work.stop_when_isolated:
                self._attempts.guard.end()
            self.on_cancel = None
            self._attempts.progress += 1
            if self.fenced:
                self._attempts.forget(self)
                return
            ended.lease.CopyFrom(self.lease)
            self.ended = pb.FromWorker(ended=ended)
            self._outbox.flush(self.key)
            if self.dropped_logs:
                self._outbox.put(dropped(self.lease, self.dropped_logs))
            self._outbox.put(self.ended)

    # What the server says. With the lock held.

    def cancel(self) -> None:
        if self.cancelled:
            return
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()
        self._outbox.nudge()

    def give_up(self) -> None:
        """The attempt is judged. The server may never answer the heartbeats that are waited for."""
        for awaited in self._awaited.values():
            awaited.refuse(Cancelled(f"the time of this attempt at run {self.run_id} is over"))
        self._awaited.clear()

    def fence(self) -> None:
        """Nothing that this attempt says counts any more: it stops, and is forgotten."""
        self.fenced = True
        self.cancel()
        self.give_up()
        self._outbox.forget(self.key)
        if self.is_over:
            self._attempts.forget(self)

    def answered(self, answer: pb.HeartbeatAnswer) -> None:
        if answer.verdict == _Verdict.VERDICT_FENCED:
            self.fence()
            return
        awaited = self._awaited.pop(answer.sequence, None)
        if awaited is None:
            return  # Answered before: a repetition.
        if answer.verdict == _Verdict.VERDICT_GO_ON:
            awaited.grant()
        elif answer.verdict == _Verdict.VERDICT_REFUSED:
            awaited.refuse(CheckpointRefused(answer.problem or "the server cannot store the checkpoint"))
        else:
            self.draining = self.draining or answer.verdict == _Verdict.VERDICT_DRAINING
            self.cancel()
            awaited.refuse(Cancelled(f"run {self.run_id} was told to stop; the checkpoint was not stored"))

    def unanswered(self) -> List[pb.FromWorker]:
        """What the server may have missed when a connection broke."""
        messages = [awaited.message for awaited in self._awaited.values()]
        return messages if self.ended is None else [*messages, self.ended]


class _Awaited:
    """A heartbeat whose sender waits for the answer."""

    def __init__(self, message: pb.FromWorker) -> None:
        self.message = message
        self.future: concurrent.futures.Future[None] = concurrent.futures.Future()
        # From here on whoever waits cannot cancel it: only the answer settles it.
        self.future.set_running_or_notify_cancel()

    def grant(self) -> None:
        self.future.set_result(None)

    def refuse(self, reason: BaseException) -> None:
        self.future.set_exception(reason)


class Attempts:
    """All attempts of this worker, under one lock."""

    def __init__(self, outbox: Outbox) -> None:
        # Taken before that of the outbox, never after it.
        self.lock = threading.RLock()
        self.progress = 0
        self.message_limit = 0
        # Knows of the work among them that must stop when nobody vouches for it.
        self.guard = Guard()
        self._outbox = outbox
        self._all: Dict[Key, Attempt] = {}
        self._tokens: Dict[bytes, None] = {}

    def begin(self, work: pb.Work) -> Optional[Attempt]:
        """Takes work on; ``None`` if this very work was handed over before."""
        with self.lock:
            if work.lease.token in self._tokens:
                return None
            self._tokens[work.lease.token] = None
            if len(self._tokens) > _REMEMBERED:
                del self._tokens[next(iter(self._tokens))]
            attempt = Attempt(work, self, self._outbox)
            self._all[attempt.key] = attempt
            if work.stop_when_isolated:
                self.guard.begin()
            return attempt

    def find(self, lease: pb.Lease) -> Optional[Attempt]:
        """The attempt that a message of the server is about, if it shows the right token."""
        attempt = self._all.get((lease.run_id, lease.attempt))
        return attempt if attempt is not None and attempt.lease.token == lease.token else None

    def cancel(self, message: pb.Cancel) -> None:
        with self.lock:
            attempt = self.find(message.lease)
            if attempt is None:
                return
            if message.why == pb.Cancel.WHY_DRAINING:
                attempt.draining = True
            elif message.why == pb.Cancel.WHY_FENCED:
                attempt.fence()
            else:
                attempt.cancel()
                if message.why == pb.Cancel.WHY_JUDGED:
                    attempt.give_up()

    def answered(self, answer: pb.HeartbeatAnswer) -> None:
        with self.lock:
            attempt = self.find(answer.lease)
            if attempt is not None:
                attempt.answered(answer)

    def output_answered(self, answer: pb.OutputAnswer) -> None:
        with self.lock:
            attempt = self.find(answer.lease)
            if attempt is not None:
                self._outbox.items_answered(attempt.key, answer.sequence)

    def end_answered(self, answer: pb.EndedAnswer) -> None:
        with self.lock:
            attempt = self.find(answer.lease)
            if attempt is not None and attempt.ended is not None:
                self.forget(attempt)

    def forget(self, attempt: Attempt) -> None:
        """With the lock held."""
        if self._all.get(attempt.key) is attempt:
            del self._all[attempt.key]
        self._outbox.forget(attempt.key)

    def cancel_all(self) -> None:
        with self.lock:
            for attempt in list(self._all.values()):
                attempt.cancel()

    def fence_all(self) -> None:
        """The server has given this worker up: nothing of what it performs counts any more."""
        with self.lock:
            for attempt in list(self._all.values()):
                attempt.fence()

    def drain(self) -> None:
        with self.lock:
            for attempt in self._all.values():
                attempt.draining = True

    def running(self) -> int:
        """How many functions run, those that nobody awaits any more among them."""
        with self.lock:
            return sum(not attempt.is_over for attempt in self._all.values())

    def are_settled(self) -> bool:
        """Whether the server has heard of every end that it awaits."""
        with self.lock:
            return all(attempt.fenced for attempt in self._all.values())

    def unfenced_effects(self) -> List[Attempt]:
        """Those that run and must stop when nobody vouches for them."""
        with self.lock:
            return [
                attempt for attempt in self._all.values() if attempt.work.stop_when_isolated and not attempt.is_over
            ]

    def leases(self) -> List[pb.Lease]:
        """What a worker that connects again still performs, or has ended without an answer."""
        with self.lock:
            return [attempt.lease for attempt in self._all.values() if not attempt.fenced]

    def unanswered(self) -> List[pb.FromWorker]:
        with self.lock:
            return [message for attempt in self._all.values() if not attempt.fenced for message in attempt.unanswered()]


def dropped(lease: pb.Lease, lines: int) -> pb.FromWorker:
    """The line in the log that stands for those that found no room."""
    text = f"{lines} lines were dropped: the server read too slowly"
    return pb.FromWorker(log=pb.Log(lease=lease, level="warning", text=text))


def _heartbeat(lease: pb.Lease, beat: Beat) -> pb.Heartbeat:
    heartbeat = pb.Heartbeat(lease=lease, done=beat.done, total=beat.total, note=beat.note)
    if beat.next_within is not None:
        heartbeat.next_within_ms = max(0, int(beat.next_within * 1000))
    return heartbeat
