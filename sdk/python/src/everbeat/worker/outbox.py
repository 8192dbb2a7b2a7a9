"""What waits to be sent to the server: in order, and bounded."""

import concurrent.futures
import threading
from collections import deque
from typing import Callable, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

from everbeat.worker import clock
from everbeat.worker import worker_pb2 as pb
from everbeat.worker.items import Items

# Streamed items and log lines wait in this much room. A generator that finds none is held up, so that memory
# stays flat whatever the task yields and however slowly the server reads.
ROOM = 64
ROOM_BYTES = 8 * 1024 * 1024

# Heartbeats of an attempt that follow each other faster are replaced by the latest.
BEAT_INTERVAL_SECONDS = 0.05

Key = Tuple[str, int]


class Outbox:
    """Messages on their way to the server, across connections.

    Three ways lead into it. Urgent messages (pongs) go before everything else and die with their connection.
    The lane keeps the order of all that concerns attempts. Heartbeats wait beside the lane, one per attempt. Streamed
    items stay beside the lane, too, after they were sent, until the server has answered them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._room_made = threading.Condition(self._lock)
        # Counts connections: the sender of an old one must not take what belongs to the next.
        self._generation = 0
        self._welcomed = False
        self._finishing = False
        self._urgent: Deque[pb.FromWorker] = deque()
        self._lane: Deque[pb.FromWorker] = deque()
        self._lane_bytes = 0
        # The server answers streamed items: they are kept for the next connection until it has.
        self._keeps_items = False
        self._items: Dict[Key, Items] = {}
        self._beats: Dict[Key, pb.FromWorker] = {}
        self._beat_due: Dict[Key, float] = {}
        self._awaiting_room: List[concurrent.futures.Future[None]] = []

    # Of the connection.

    def open(self) -> int:
        """A new connection begins; what it sends is `messages` of this number."""
        with self._lock:
            self._generation += 1
            self._welcomed = False
            self._urgent.clear()
            self._changed.notify_all()
            return self._generation

    def messages(self, generation: int, hello: pb.FromWorker) -> Iterator[pb.FromWorker]:
        """What a connection sends: the hello, and after the welcome everything else, until it is closed."""
        yield hello
        while True:
            message = self._take(generation)
            if message is None:
                return
            yield message

    def welcome(self, again: Iterable[pb.FromWorker], answers_items: bool = False) -> None:
        """The server has answered the hello. ``again`` is what it may have missed, besides streamed items: heartbeats
        that await an answer, and endings."""
        with self._lock:
            self._keeps_items = answers_items
            if not answers_items:
                self._items.clear()
            items = [message for kept in self._items.values() for message in kept]
            waiting = [message for message in self._lane if not self._is_said_again(message)]
            self._lane.clear()
            self._lane_bytes = 0
            for message in [*waiting, *items, *again]:
                self._append(message)
            self._welcomed = True
            self._changed.notify_all()

    def close(self) -> None:
        """The connection is over: its sender stops, and all that is not urgent waits for the next."""
        self.open()

    def finish(self) -> None:
        """Ends the sending side of the connection once everything was sent."""
        with self._lock:
            self._finishing = True
            self._changed.notify_all()

    # Of those who have something to say.

    def urge(self, message: pb.FromWorker) -> None:
        """Sends something before everything else; it is dropped if there is no connection."""
        with self._lock:
            if self._welcomed:
                self._urgent.append(message)
                self._changed.notify_all()

    def put(self, message: pb.FromWorker) -> None:
        """Sends something in order, whatever waits: for what each attempt has one of."""
        with self._lock:
            self._append(message)

    def offer(self, message: pb.FromWorker) -> bool:
        """Sends something in order if there is room."""
        with self._lock:
            if self._has_no_room(message):
                return False
            self._append(message)
            self._keep(message)
            return True

    def put_with_room(self, message: pb.FromWorker, wanted: Callable[[], bool]) -> bool:
        """Sends something in order as soon as there is room; not if it is no longer wanted by then."""
        with self._lock:
            while self._has_no_room(message) and wanted():
                self._room_made.wait()
            if not wanted():
                return False
            self._append(message)
            self._keep(message)
            return True

    def room(self, message: pb.FromWorker) -> "concurrent.futures.Future[None]":
        """Done when there may be room for the message, for those who must not block."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        with self._lock:
            if self._has_no_room(message):
                self._awaiting_room.append(future)
                return future
        future.set_result(None)
        return future

    def nudge(self) -> None:
        """Has everybody who waits for room look again whether what they send is wanted."""
        with self._lock:
            self._wake_those_without_room()

    def beat(self, key: Key, message: pb.FromWorker) -> None:
        """A heartbeat that wants no answer; of several the latest is sent, when it is due."""
        with self._lock:
            self._beats[key] = message
            self._changed.notify_all()

    def flush(self, key: Key) -> None:
        """Moves a heartbeat that waits into the lane: something that must follow it comes next."""
        with self._lock:
            self._flush(key)

    def items_answered(self, key: Key, sequence: int) -> None:
        """The server has stored all items of an attempt up to this one."""
        with self._lock:
            items = self._items.get(key)
            if items is not None:
                items.answered(sequence)
                self._wake_those_without_room()

    def forget(self, key: Key) -> None:
        """Drops what is kept of an attempt that is over, or that nobody awaits."""
        with self._lock:
            self._items.pop(key, None)
            self._beats.pop(key, None)
            self._beat_due.pop(key, None)

    # Inside; all with the lock held.

    def _take(self, generation: int) -> Optional[pb.FromWorker]:
        with self._lock:
            while True:
                if generation != self._generation:
                    return None
                pause: Optional[float] = None
                if self._welcomed:
                    now = clock.now()
                    message = self._next(now)
                    if message is not None:
                        return message
                    if self._finishing and not self._beats:
                        return None
                    dues = [self._beat_due.get(key, 0.0) for key in self._beats]
                    pause = max(0.0, min(dues) - now) if dues else None
                self._changed.wait(pause)

    def _next(self, now: float) -> Optional[pb.FromWorker]:
        if self._urgent:
            return self._urgent.popleft()
        for key, message in self._beats.items():
            if self._beat_due.get(key, 0.0) <= now:
                del self._beats[key]
                self._beat_due[key] = now + BEAT_INTERVAL_SECONDS
                return message
        if not self._lane:
            return None
        message = self._lane.popleft()
        self._lane_bytes -= message.ByteSize()
        if not self._is_full():
            self._wake_those_without_room()
        return message

    def _append(self, message: pb.FromWorker) -> None:
        self._lane.append(message)
        self._lane_bytes += message.ByteSize()
        self._changed.notify_all()

    def _keep(self, message: pb.FromWorker) -> None:
        if self._keeps_items and message.WhichOneof("message") == "output":
            self._items.setdefault(_key(message), Items()).keep(message)

    def _flush(self, key: Key) -> None:
        message = self._beats.pop(key, None)
        if message is not None:
            self._beat_due[key] = clock.now() + BEAT_INTERVAL_SECONDS
            self._append(message)

    def _has_no_room(self, message: pb.FromWorker) -> bool:
        if self._is_full():
            return True
        items = self._items.get(_key(message)) if message.WhichOneof("message") == "output" else None
        return items is not None and items.are_full()

    def _is_full(self) -> bool:
        return len(self._lane) >= ROOM or self._lane_bytes >= ROOM_BYTES

    def _wake_those_without_room(self) -> None:
        self._room_made.notify_all()
        for future in self._awaiting_room:
            if future.set_running_or_notify_cancel():
                future.set_result(None)
        self._awaiting_room.clear()

    def _is_said_again(self, message: pb.FromWorker) -> bool:
        """Whether this message is kept elsewhere until it is answered, and said again from there."""
        kind = message.WhichOneof("message")
        if kind == "output":
            return self._keeps_items
        return kind == "ended" or (kind == "heartbeat" and message.heartbeat.sequence > 0)


def _key(message: pb.FromWorker) -> Key:
    """The attempt whose item this is."""
    return message.output.lease.run_id, message.output.lease.attempt
