"""The thread that speaks with the server."""

import asyncio
import random
import threading
import traceback
from dataclasses import dataclass, field
from typing import Callable, Optional, Tuple

import grpc

from everbeat.worker import clock, outcome, vitals
from everbeat.worker import worker_pb2 as pb
from everbeat.worker.attempts import Attempts
from everbeat.worker.ending import emergency, say
from everbeat.worker.outbox import Outbox
from everbeat.worker.perform import Performer
from everbeat.worker.pulse import Pulse
from everbeat.worker.target import Target

_METHOD = "/everbeat.worker.v1.WorkerLink/Connect"

# What a server says that will say the same next time.
_REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)

_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0

# A server that takes longer to answer a hello is taken for one that does not.
_WELCOME_SECONDS = 10.0

# The same, where a server awaits the worker's return. Short: after a cut, a new dial gets through sooner than one whose
# packets were lost, which are repeated at growing distances.
_RETURN_SECONDS = 5.0

# How long a worker that has said all waits for the server to close the connection.
_GOODBYE_SECONDS = 2.0

_STACKS_BYTES = 256 * 1024


@dataclass(frozen=True)
class Identity:
    """What a hello says that never changes."""

    pool: str
    secret: str = field(repr=False)
    sdk: str
    tasks: Tuple[str, ...]
    graphs: Tuple[str, ...]
    flows: Tuple[str, ...]
    schedules: Tuple[str, ...]
    slots: int
    queues: Tuple[str, ...]
    host: str

    def metadata(self) -> Tuple[Tuple[str, str], ...]:
        """The token of a remote worker goes before the stream, too, where proxies look for it."""
        if self.pool or not self.secret:
            return ()
        return (("authorization", f"Bearer {self.secret}"),)


class Link(threading.Thread):
    """Keeps a connection to the server, reads what comes, and answers pings at once.

    No code of the user's runs in this thread. ``ended`` is called with the exit code when there is nothing left
    to say.
    """

    def __init__(
        self,
        target: Target,
        identity: Identity,
        outbox: Outbox,
        attempts: Attempts,
        performer: Performer,
        pulse: Pulse,
        loop: asyncio.AbstractEventLoop,
        wake_watchdog: Callable[[], None],
        ended: Callable[[int], None],
    ) -> None:
        super().__init__(name="everbeat-link", daemon=True)
        self._target = target
        self._identity = identity
        self._outbox = outbox
        self._attempts = attempts
        self._performer = performer
        self._pulse = pulse
        self._loop = loop
        self._wake_watchdog = wake_watchdog
        self._ended = ended
        self._lag = vitals.LoopLag(loop)
        self._worker_id = ""
        self._key = b""
        # Counts how often this worker has begun anew, and of which life the present hello is: the server that answers
        # an earlier one awaits what that has shown, and this worker has given up.
        self._lives = 0
        self._hello_of = 0
        self._call: Optional[grpc.RpcContext] = None
        self._welcomed = False
        # The connection was given up since no ping came.
        self._quiet = False
        self._draining = False
        self._hurry = threading.Event()
        # When the connection is given up if nothing happens: no welcome, or no goodbye.
        self._give_up_at: Optional[float] = None
        self._cancel_at: Optional[float] = None

    # Of other threads.

    def drain(self, grace_seconds: Optional[float] = None) -> None:
        """Takes nothing new, lets what runs finish, then ends. After the grace what still runs is cancelled."""
        if grace_seconds is not None:
            self._cancel_at = clock.now() + grace_seconds
            self._wake_watchdog()
        with self._attempts.lock:
            self._attempts.drain()
            if not self._draining:
                self._draining = True
                # Without a connection it is dropped; the next welcome is answered with it.
                self._outbox.urge(pb.FromWorker(draining=pb.Draining()))
        self._finish_if_settled()
        self._hurry.set()

    def start_anew(self) -> None:
        """Forgets the server's lease on this worker and everything under it, and connects as a new worker."""
        self._pulse.restart()
        with self._attempts.lock:
            self._attempts.fence_all()
            self._worker_id, self._key = "", b""
            self._lives += 1
        self._hang_up()

    def check(self, now: float) -> Optional[float]:
        """Of the watchdog."""
        give_up_at, cancel_at, quiet_at = self._give_up_at, self._cancel_at, self._quiet_at()
        if give_up_at is not None and now >= give_up_at:
            self._hang_up()
            give_up_at = now + _SHORTEST_PAUSE_SECONDS  # Unless the link has noticed by then.
        if cancel_at is not None and now >= cancel_at:
            self._cancel_at = cancel_at = None
            self._attempts.cancel_all()
        if quiet_at is not None and now >= quiet_at:
            self._quiet = True
            self._hang_up()
            quiet_at = now + _SHORTEST_PAUSE_SECONDS  # As above.
        return min((due for due in (give_up_at, cancel_at, quiet_at) if due is not None), default=None)

    def _quiet_at(self) -> Optional[float]:
        """When this connection is given up for another. A socket of this machine loses nothing."""
        return self._pulse.quiet_at() if self._welcomed and self._call is not None and self._target.is_far() else None

    # Of this thread.

    def run(self) -> None:
        try:
            code = self._live()
        except BaseException:
            # Without its link the worker is of no use, and would look alive.
            say(f"everbeat: the link failed; please report this\n{traceback.format_exc()}")
            code = 1
        self._ended(code)

    def _live(self) -> int:
        pause = _SHORTEST_PAUSE_SECONDS
        while not self._is_done():
            status, details = self._connect()
            if self._is_done():
                break
            if self._welcomed:
                pause = _SHORTEST_PAUSE_SECONDS
            elif status is grpc.StatusCode.FAILED_PRECONDITION and self._worker_id and not self._identity.pool:
                # The server knows nothing of this worker any more: it has restarted, or given it up.
                self.start_anew()
            elif status in _REFUSALS:
                say(f"everbeat: {self._target} refused this worker: {details or status.name}")
                return 1
            if self._target.is_gone():
                self._attempts.cancel_all()
                emergency("server_gone")
            if self._quiet:
                say(f"everbeat: no ping from {self._target}; connecting again")
            elif pause == _SHORTEST_PAUSE_SECONDS:
                say(f"everbeat: no connection to {self._target} ({status.name}: {details}); trying again")
            self._hurry.wait(pause * random.uniform(0.5, 1.0))
            self._hurry.clear()
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        return 0

    def _is_done(self) -> bool:
        return self._draining and self._attempts.are_settled()

    def _connect(self) -> Tuple[grpc.StatusCode, str]:
        """One connection from its beginning to its end."""
        self._welcomed = self._quiet = False
        returns = bool(self._worker_id) and self._target.is_far()
        self._give_up_at = clock.now() + (_RETURN_SECONDS if returns else _WELCOME_SECONDS)
        generation = self._outbox.open()
        channel = self._target.channel()
        try:
            connect = channel.stream_stream(
                _METHOD,
                request_serializer=pb.FromWorker.SerializeToString,
                response_deserializer=pb.FromServer.FromString,
            )
            messages = self._outbox.messages(generation, self._hello())
            self._call = call = connect(messages, metadata=self._identity.metadata())
            try:
                for message in call:
                    if not self._heard(message):
                        break
            except grpc.RpcError:
                pass  # The call itself knows its status.
            call.cancel()
            return call.code(), call.details() or ""
        finally:
            self._call = None
            self._give_up_at = None
            self._outbox.close()
            channel.close()

    def _hang_up(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()

    def _hello(self) -> pb.FromWorker:
        self._pulse.spoke()
        identity = self._identity
        hello = pb.Hello(
            pool=identity.pool,
            secret=identity.secret,
            sdk=identity.sdk,
            tasks=identity.tasks,
            graphs=identity.graphs,
            flows=identity.flows,
            schedules=identity.schedules,
            slots=identity.slots,
            queues=identity.queues,
            host=identity.host,
        )
        with self._attempts.lock:
            self._hello_of = self._lives
            hello.worker_id, hello.key = self._worker_id, self._key
            hello.leases.extend(self._attempts.leases())
        return pb.FromWorker(hello=hello)

    def _heard(self, message: pb.FromServer) -> bool:
        """Answers one message. False ends the connection: what came cannot come."""
        kind = message.WhichOneof("message")
        if not self._welcomed:
            return kind == "welcome" and self._hear_welcome(message.welcome)
        if kind == "ping":
            self._answer_ping(message.ping)
            self._wake_watchdog()
        elif kind == "work":
            self._take(message.work)
            if message.work.stop_when_isolated:
                # Nothing else about work is ever due: to wake a thread for each would cost more than the rest.
                self._wake_watchdog()
        elif kind == "heartbeat_answer":
            self._attempts.answered(message.heartbeat_answer)
            self._finish_if_settled()
        elif kind == "output_answer":
            self._attempts.output_answered(message.output_answer)
        elif kind == "cancel":
            self._attempts.cancel(message.cancel)
            self._finish_if_settled()
        elif kind == "ended_answer":
            self._attempts.end_answered(message.ended_answer)
            self._finish_if_settled()
        elif kind == "drain":
            self.drain(message.drain.grace_ms / 1000)
        elif kind == "dump":
            text = outcome.clean(vitals.stacks(self._loop), _STACKS_BYTES)
            self._outbox.urge(pb.FromWorker(stacks=pb.Stacks(sequence=message.dump.sequence, text=text)))
        elif kind == "declined":
            declined = message.declined
            say(f"everbeat: {declined.kind} {declined.name!r} was not accepted: {declined.problem}")
        # Anything else is of a newer server; a second welcome changes nothing.
        return True

    def _hear_welcome(self, welcome: pb.Welcome) -> bool:
        if not self._pulse.welcomed(welcome):
            return False
        with self._attempts.lock:
            if self._hello_of != self._lives:
                return False
            self._welcomed = True
            self._give_up_at = None
            self._worker_id, self._key = welcome.worker_id, welcome.key
            self._attempts.message_limit = welcome.message_limit
            again = self._attempts.unanswered()
            if self._draining:
                again.insert(0, pb.FromWorker(draining=pb.Draining()))
            self._outbox.welcome(again, welcome.answers_output)
        if not self._identity.pool:
            say(f"everbeat: connected to {self._target}; performing {', '.join(self._identity.tasks) or 'nothing'}")
        self._wake_watchdog()
        self._finish_if_settled()
        return True

    def _answer_ping(self, ping: pb.Ping) -> None:
        if not self._pulse.pinged(ping):
            return
        self._pulse.spoke()
        pong = pb.Pong(
            sequence=ping.sequence,
            running=self._attempts.running(),
            lag_ms=self._lag.look(),
            progress=self._attempts.progress,
            resident_bytes=vitals.resident_bytes(),
            cpu_ms=vitals.cpu_ms(),
        )
        self._outbox.urge(pb.FromWorker(pong=pong))

    def _take(self, work: pb.Work) -> None:
        attempt = self._attempts.begin(work)
        if attempt is None:
            return
        if self._draining:
            # Sent before the server heard that this worker takes nothing new.
            attempt.end(outcome.stopped())
        else:
            self._performer.begin(attempt)

    def _finish_if_settled(self) -> None:
        if self._is_done():
            self._give_up_at = clock.now() + _GOODBYE_SECONDS
            self._outbox.finish()
            if not self._welcomed:
                self._hang_up()
