"""A server of the worker link that does what a test tells it, right or wrong."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from everbeat.worker import worker_pb2 as pb

PATIENCE = 20
_END = object()


class FakeServer:
    """Listens on an address; each stream that a worker opens is a `Connection`."""

    def __init__(self, address: str, credentials=None) -> None:
        self.address = address
        self._credentials = credentials
        self._connections: queue.Queue = queue.Queue()
        self._all: list = []
        self._server = None
        self.refusal = None
        self.start()

    def start(self) -> None:
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=16),
            options=[("grpc.http2.lookahead_bytes", 16384), ("grpc.so_reuseport", 0)],
        )
        # Bytes pass as they are, so that a test can send garbage.
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        service = grpc.method_handlers_generic_handler("everbeat.worker.v1.WorkerLink", {"Connect": handler})
        self._server.add_generic_rpc_handlers((service,))
        if self._credentials is None:
            self.port = self._server.add_insecure_port(self.address)
        else:
            self.port = self._server.add_secure_port(self.address, self._credentials)
        self._server.start()

    def stop(self) -> None:
        for connection in self._all:
            connection.end()
        self._server.stop(0).wait()

    def _connect(self, requests, context):
        if self.refusal:
            context.abort(*self.refusal)
        connection = Connection(requests, context)
        self._all.append(connection)
        self._connections.put(connection)
        while True:
            message = connection.outgoing.get()
            if message is _END:
                return
            if isinstance(message, tuple):
                context.abort(*message)
            yield message

    def connection(self) -> "Connection":
        """The next connection, after its hello."""
        connection = self._connections.get(timeout=PATIENCE)
        connection.hello = connection.expect("hello")
        return connection

    def welcomed(self, ttl=30.0, vouched=60.0, limit=1 << 20, pinging=True, epoch=1, answers=False) -> "Connection":
        """The next connection, welcomed and pinged."""
        connection = self.connection()
        connection.welcome(ttl=ttl, limit=limit, epoch=epoch, answers=answers)
        if pinging:
            connection.keep_pinging(vouched)
        return connection


class Connection:
    def __init__(self, requests, context) -> None:
        self.outgoing: queue.Queue = queue.Queue()
        self.context = context
        self.hello = None
        self.epoch = 0
        self.metadata = dict(context.invocation_metadata())
        self.ended = threading.Event()
        self.reading = threading.Event()
        self.reading.set()
        self.pongs: queue.Queue = queue.Queue()
        self._silent = threading.Event()
        self._inbox: queue.Queue = queue.Queue()
        self._requests = requests
        self._sequence = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for data in self._requests:
                message = pb.FromWorker.FromString(data)
                kind = message.WhichOneof("message")
                (self.pongs if kind == "pong" else self._inbox).put(getattr(message, kind))
                if kind != "pong":  # One that comes between would be read in place of what a test waits for.
                    self.reading.wait()
        except Exception:
            pass  # The stream was cut.
        self._inbox.put(_END)
        self.ended.set()

    # What the server says.

    def send(self, **message) -> None:
        self.outgoing.put(pb.FromServer(**message).SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        self.outgoing.put(data)

    def welcome(self, ttl=30.0, limit=1 << 20, epoch=1, answers=False) -> None:
        self.epoch = epoch
        welcome = pb.Welcome(
            worker_id="w1",
            epoch=epoch,
            ping_interval_ms=100,
            worker_ttl_ms=int(ttl * 1000),
            key=b"key",
            message_limit=limit,
            answers_output=answers,
        )
        self.send(welcome=welcome)

    def ping(self, vouched=60.0, epoch=None) -> int:
        self._sequence += 1
        epoch = self.epoch if epoch is None else epoch
        self.send(ping=pb.Ping(sequence=self._sequence, epoch=epoch, vouched_ms=int(vouched * 1000)))
        return self._sequence

    def keep_pinging(self, vouched=60.0) -> None:
        def ping() -> None:
            while not self._silent.wait(0.05) and not self.ended.is_set():
                self.ping(vouched)

        threading.Thread(target=ping, daemon=True).start()

    def fall_silent(self) -> None:
        self._silent.set()

    def end(self) -> None:
        """Closes the stream as a server that is well does."""
        self._silent.set()
        self.outgoing.put(_END)

    def cut(self, code=grpc.StatusCode.UNAVAILABLE, details="cut") -> None:
        self._silent.set()
        self.outgoing.put((code, details))

    def work(self, task, run_id="r1", attempt=1, token=b"t" * 16, **fields) -> pb.Lease:
        lease = pb.Lease(run_id=run_id, attempt=attempt, token=token)
        fields.setdefault("input", "null")
        self.send(work=pb.Work(lease=lease, task=task, cancel_grace_ms=1000, **fields))
        return lease

    def cancel(self, lease, why=pb.Cancel.WHY_CANCELLED) -> None:
        self.send(cancel=pb.Cancel(lease=lease, why=why))

    def answer(self, heartbeat, verdict="GO_ON", problem="") -> None:
        number = pb.HeartbeatAnswer.Verdict.Value(f"VERDICT_{verdict}")
        self.send(
            heartbeat_answer=pb.HeartbeatAnswer(
                lease=heartbeat.lease, verdict=number, sequence=heartbeat.sequence, problem=problem
            )
        )

    def answer_output(self, lease, sequence) -> None:
        self.send(output_answer=pb.OutputAnswer(lease=lease, sequence=sequence))

    def answer_end(self, lease) -> None:
        self.send(ended_answer=pb.EndedAnswer(lease=lease))

    # What the worker says.

    def next(self, timeout=PATIENCE):
        """The next message that is no pong; ``None`` at the end of the stream."""
        message = self._inbox.get(timeout=timeout)
        return None if message is _END else message

    def expect(self, kind: str, skip=()):
        """The next message, which must be of that kind; those of the kinds to skip do not count."""
        while True:
            message = self.next()
            assert message is not None, f"the stream ended where {kind} was awaited"
            found = type(message).__name__.lower()
            if found == kind:
                return message
            assert found in skip, f"{found} came where {kind} was awaited: {message}"

    def expect_started(self) -> None:
        """The heartbeat by which a task of `apps/tasks.py` says that it runs."""
        assert self.expect("heartbeat").note == "started"

    def expect_end(self, skip=("heartbeat", "log")):
        """The next ending, which is answered."""
        ended = self.expect("ended", skip)
        self.answer_end(ended.lease)
        return ended

    def silence_until_pong(self) -> list:
        """What came before the pong to a ping that is sent now: everything that was under way."""
        while True:
            try:
                self.pongs.get_nowait()
            except queue.Empty:
                break
        sequence = self.ping()
        while self.pongs.get(timeout=PATIENCE).sequence != sequence:
            pass
        messages = []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages
