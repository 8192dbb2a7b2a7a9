"""A worker without an SDK that breaks the rules of the link as its work tells it to."""

import json
import os
import queue
import socket
import threading
import time

import grpc

from everbeat.worker import worker_pb2 as pb

METHOD = "/everbeat.worker.v1.WorkerLink/Connect"
PATH = os.environ["EVERBEAT_WORKER_SOCKET"]
with open(int(os.environ["EVERBEAT_WORKER_SECRET_FD"])) as pipe:
    SECRET = pipe.read().strip()


class Rogue:
    def __init__(self):
        self.outgoing = queue.Queue()
        self.heard = queue.Queue()
        self.reading = threading.Event()
        self.reading.set()

    def run(self):
        self.send(pb.FromWorker(hello=hello()))
        try:
            for message in connect(iter(self.outgoing.get, None)):
                self.reading.wait()
                kind = message.WhichOneof("message")
                if kind == "ping":
                    self.send(pb.FromWorker(pong=pb.Pong(sequence=message.ping.sequence)))
                elif kind == "work":
                    threading.Thread(target=self.perform, args=(message.work,), daemon=True).start()
                elif kind == "drain":
                    return
                elif kind == "welcome" and "ROGUE_LEAVES" in os.environ:
                    self.leave(os.environ["ROGUE_LEAVES"])
                else:
                    self.heard.put(message)
        except grpc.RpcError as error:
            print(f"refused: {error.code().name}: {error.details()}", flush=True)

    def leave(self, how):
        """Says that it goes although nobody asked it to, and then goes, or stays."""
        self.send(pb.FromWorker(draining=pb.Draining()))
        if how == "goes":
            # The end of the messages: the server ends the stream when it has read them.
            self.send(None)

    def send(self, message):
        self.outgoing.put(message)

    def expect(self, kind):
        while True:
            message = self.heard.get(timeout=20)
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)

    def end(self, lease, result):
        self.send(pb.FromWorker(ended=pb.Ended(lease=lease, result=json.dumps(result))))

    def perform(self, work):
        given = json.loads(work.input)
        getattr(self, given.pop("how"))(work.lease, **given)

    def honest(self, lease):
        self.end(lease, "honest")

    def garbage(self, lease):
        self.send(b"\xff\xff\xff\xff this is no message")

    def nothing(self, lease):
        """A message that says nothing, as of a later version; and a second hello."""
        self.send(pb.FromWorker())
        self.send(pb.FromWorker(hello=hello()))

    def oversized(self, lease):
        self.end(lease, "x" * (5 << 20))

    def not_json(self, lease):
        self.send(pb.FromWorker(ended=pb.Ended(lease=lease, result="{no json")))

    def no_outcome(self, lease):
        self.send(pb.FromWorker(ended=pb.Ended(lease=lease)))

    def other_leases(self, lease):
        wrong = [
            pb.Lease(run_id=lease.run_id, attempt=lease.attempt, token=os.urandom(16)),
            pb.Lease(run_id=lease.run_id, attempt=lease.attempt + 1, token=lease.token),
            pb.Lease(run_id="00000000-0000-7000-8000-000000000007", attempt=lease.attempt, token=lease.token),
        ]
        answers = []
        for each in wrong:
            beat = pb.Heartbeat(lease=each, sequence=1, checkpoint="3", note="stolen")
            self.send(pb.FromWorker(heartbeat=beat))
            answers.append(pb.HeartbeatAnswer.Verdict.Name(self.expect("heartbeat_answer").verdict))
            self.end(each, "stolen")
            self.expect("ended_answer")
        self.end(lease, answers)

    def strange_lease(self, lease):
        self.send(pb.FromWorker(ended=pb.Ended(lease=pb.Lease(run_id="x" * 1000, token=b"1"), result="1")))

    def twice(self, lease):
        for result in ("first", "second", "third"):
            self.end(lease, result)

    def after_cancel(self, lease, pause):
        self.send(pb.FromWorker(heartbeat=pb.Heartbeat(lease=lease, note="begun")))
        self.expect("cancel")
        time.sleep(pause)
        self.send(pb.FromWorker(heartbeat=pb.Heartbeat(lease=lease, note="later", checkpoint="9", sequence=1)))
        verdict = self.expect("heartbeat_answer").verdict
        print("answered:", pb.HeartbeatAnswer.Verdict.Name(verdict), flush=True)
        self.end(lease, "too late")
        self.expect("ended_answer")
        print("heard after the cancel", flush=True)

    def flood(self, lease, megabytes, kind="output"):
        # As large as an item may be.
        text = json.dumps("o" * ((1 << 20) - 2))
        for sequence in range(megabytes):
            if kind == "output":
                message = pb.FromWorker(output=pb.Output(lease=lease, sequence=sequence + 1, item=text))
            elif kind == "note":
                message = pb.FromWorker(heartbeat=pb.Heartbeat(lease=lease, note=text))
            else:
                message = pb.FromWorker(log=pb.Log(lease=lease, level="info", text=text))
            while self.outgoing.qsize() > 8:
                time.sleep(0.001)
            self.send(message)
        self.end(lease, "flooded")

    def deaf(self, lease):
        """Says much that must be answered, and reads no answer."""
        self.reading.clear()
        stranger = pb.Lease(run_id=lease.run_id, attempt=lease.attempt, token=os.urandom(16))
        while True:
            while self.outgoing.qsize() > 1000:
                time.sleep(0.001)
            self.send(pb.FromWorker(heartbeat=pb.Heartbeat(lease=stranger, sequence=1, note="n" * 1000)))

    def unknown_pongs(self, lease):
        for sequence in range(10_000):
            self.send(pb.FromWorker(pong=pb.Pong(sequence=1_000_000 + sequence)))
            self.send(pb.FromWorker(stacks=pb.Stacks(sequence=sequence, text="s" * 100)))
        self.end(lease, "ponged")

    def strangers(self, lease):
        """What a stranger is answered."""
        answers = {
            "wrong secret": refusal(pb.FromWorker(hello=hello(secret="0" * 64))),
            "no secret": refusal(pb.FromWorker(hello=hello(secret=""))),
            "again": refusal(pb.FromWorker(hello=hello())),
            "no such pool": refusal(pb.FromWorker(hello=hello(pool="other"))),
            "of no pool": refusal(pb.FromWorker(hello=hello(pool="", secret=""))),
            "no slots": refusal(pb.FromWorker(hello=hello(slots=0))),
            "no hello": refusal(pb.FromWorker(draining=pb.Draining())),
            "garbage": refusal(b"\xff\xff\xff"),
            "large": refusal(pb.FromWorker(hello=hello(sdk="s" * (20 << 20)))),
            "many tasks": refusal(pb.FromWorker(hello=hello(tasks=[f"t{number}" for number in range(5000)]))),
            "odd task": refusal(pb.FromWorker(hello=hello(tasks=["no name\n"]))),
            "other key": refusal(
                pb.FromWorker(hello=hello(worker_id=os.environ["EVERBEAT_WORKER_ID"], key=os.urandom(16)))
            ),
            "other method": refusal(pb.FromWorker(hello=hello()), "/everbeat.worker.v1.WorkerLink/Other"),
        }
        for junk in (
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(100_000),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(10_000),
        ):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(PATH)
                raw.settimeout(5)
                try:
                    raw.sendall(junk)
                    while raw.recv(65536):
                        pass
                except OSError:
                    pass
        # Connections that never say anything.
        self.silent = [socket.socket(socket.AF_UNIX) for _ in range(400)]
        for each in self.silent:
            each.settimeout(2)
            try:
                each.connect(PATH)
            except OSError:
                break
        self.end(lease, answers)


def hello(**said):
    said = {
        "pool": os.environ["EVERBEAT_POOL"],
        "secret": SECRET,
        "tasks": ["rogue"],
        "slots": 2,
        "sdk": "rogue",
        **said,
    }
    return pb.Hello(**said)


def connect(messages, method=METHOD):
    channel = grpc.insecure_channel(
        f"unix:{PATH}",
        options=[
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.default_authority", "localhost"),
        ],
    )
    call = channel.stream_stream(
        method,
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=pb.FromServer.FromString,
    )
    return call(messages)


def refusal(first, method=METHOD):
    over = threading.Event()

    def messages():
        yield first
        over.wait(15)

    try:
        for message in connect(messages(), method):
            return f"let in: {message.WhichOneof('message')}"
        return "ended"
    except grpc.RpcError as error:
        return error.code().name
    finally:
        over.set()


Rogue().run()
