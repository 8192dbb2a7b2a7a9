"""Everbeat and its peers behind one interface: start, enqueue, count what is left, end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid

import everbeat
import redis

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.02


def until(holds, what):
    """Waits until something holds; answers it."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up:
        found = holds()
        if found:
            return found
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"{what}: not within {PATIENCE_SECONDS:.0f} s")


class System:
    """One system with one set of promises. `workers` are processes with one slot or thread each."""

    name = ""
    promises = ""
    answers = True  # Whether a client can wait for one result.

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="bench-pools-")
        self._process = None

    def prepare(self):
        """Before anything is enqueued."""

    def enqueue(self, count):
        """Enqueues tasks as fast as the system's own client can in bulk."""
        for _ in range(count):
            self.submit()

    def submit(self):
        """Submits one task, as its users do."""
        raise NotImplementedError

    def answer(self):
        """Submits one task and waits until its result is there."""
        raise NotImplementedError

    def left(self):
        """How many of the tasks are not done."""
        raise NotImplementedError

    def go(self, workers):
        """Has workers perform what is enqueued."""
        raise NotImplementedError

    def ready(self):
        """Waits until all workers take work."""

    def end(self):
        """Ends whatever was started."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, command, env=None):
        self.log = os.path.join(self.folder, "log")
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=HERE,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _logged(self, pattern):
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {self._read_log()[-2000:]}")
        return re.findall(pattern, self._read_log())

    def _read_log(self):
        with open(self.log, errors="replace") as log:
            return log.read()


class Everbeat(System):
    """A server with a pool of Python workers."""

    def __init__(self, store):
        super().__init__()
        self._store = store
        self.name = f"everbeat-{store.partition(':')[0]}"
        self.promises = (
            "each task is on disk (synced commit) before the submit is answered; each begun attempt is on disk before it "
            "is performed; result and history are kept on disk; a lost attempt is tried again, and a late one is fenced"
        )
        self._client = self._database = None

    def prepare(self):
        config = os.path.join(self.folder, "everbeat.toml")
        with open(config, "w") as file:
            file.write(
                f'[store]\nurl = {json.dumps(self._url())}\n[telemetry]\nlog = "warn"\n'
                f'[[pool]]\nname = "peer"\nqueues = ["peer"]\nsize = 1\nslots = 1\ncwd = {json.dumps(HERE)}\n'
                f'command = [{json.dumps(sys.executable)}, "-m", "everbeat.worker", "everbeat_tasks:app"]\n'
            )
        data = os.path.join(self.folder, "data")
        self._start(
            [os.environ["EVERBEAT_BIN"], "serve", "--config", config, "--listen", "127.0.0.1:0", "--data-dir", data]
        )
        (url,) = until(lambda: self._logged(r"is ready at (\S+)"), "the server")
        self._client = everbeat.Client(url)
        self._scale(1)
        self._ask("queues/peer/pause", {})

    def _url(self):
        if self._store == "sqlite":
            return f"sqlite://{self.folder}/everbeat.db"
        self._database = f"peer_{uuid.uuid4().hex}"
        self._sql(f"create database {self._database}")
        return f"{self._store.rpartition('/')[0]}/{self._database}"

    def _sql(self, statement):
        subprocess.run(["psql", self._store, "--quiet", "--command", statement], check=True)

    def end(self):
        super().end()
        if self._database:
            self._sql(f"drop database {self._database} with (force)")

    def _scale(self, count):
        self._ask("pools/peer/scale", {"size": count})
        until(lambda: self._ask("pools/peer")["ready"] == count, f"{count} workers")

    def _ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._client.url}/api/v1/{path}", data)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)

    def enqueue(self, count):
        batch = 500
        for _ in range(count // batch):
            self._client.runs.batch([{"task": "nothing", "queue": "peer"}] * batch)

    def submit(self):
        self._client.runs.submit("nothing", queue="peer")

    def answer(self):
        run = self._client.runs.submit("nothing", queue="peer")
        self._client.runs.wait(run.id, timeout=PATIENCE_SECONDS).unwrap()

    def left(self):
        queue = next(each for each in self._ask("queues")["items"] if each["name"] == "peer")
        return queue["scheduled"] + queue["ready"] + queue["running"]

    def go(self, workers):
        self._scale(workers)
        self._ask("queues/peer/resume", {})


class Peer(System):
    """A system on Redis."""

    def __init__(self, url, results):
        super().__init__()
        self.answers = results
        self.env = {"PEER_REDIS": url, "PEER_RESULTS": "1" if results else "0", "PYTHONUNBUFFERED": "1"}
        self._broker, self._backend = redis.Redis.from_url(f"{url}/0"), redis.Redis.from_url(f"{url}/1")

    def prepare(self):
        self._broker.flushall()
        os.environ.update(self.env)

    def end(self):
        super().end()
        self._broker.flushall()
        for client in (self._broker, self._backend):
            client.close()


class Celery(Peer):
    """Processes of the pool `prefork`."""

    def __init__(self, url, late, results):
        super().__init__(url, results)
        self.env["PEER_LATE"] = "1" if late else "0"
        self.name = "celery-" + ("late" if late else "early") + ("-results" if results else "")
        self.promises = (
            "tasks are in Redis' memory, without a sync; "
            + (
                "acknowledged when they are done: one that is lost is delivered again after the visibility timeout (1 h)"
                if late
                else "acknowledged before they begin: one that is lost is not tried again"
            )
            + ("; results are in Redis for a day" if results else "; results are not kept")
        )

    def prepare(self):
        super().prepare()
        import celery_tasks

        self._app, self._task = celery_tasks.app, celery_tasks.nothing

    def submit(self):
        self._task.delay()

    def answer(self):
        self._task.delay().get(timeout=PATIENCE_SECONDS)

    def left(self):
        return self._broker.llen("celery") + self._broker.hlen("unacked")

    def go(self, workers):
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--pool", "prefork"]
        command += ["--concurrency", str(workers), "--loglevel", "WARNING", "--without-gossip", "--without-mingle"]
        self._start(command, self.env)

    def ready(self):
        until(lambda: self._app.control.ping(timeout=0.5), "Celery's worker")


class Dramatiq(Peer):
    """Processes with one thread each."""

    def __init__(self, url, prefetch, results):
        super().__init__(url, results)
        self.name = "dramatiq" + ("-prefetch" if prefetch else "") + ("-results" if results else "")
        if prefetch:
            # Without it a process fetches two messages for each thread, and sleeps while it holds them.
            self.env["dramatiq_queue_prefetch"] = str(prefetch)
        self.promises = (
            "tasks are in Redis' memory, without a sync; acknowledged when they are done: those of a worker that is gone "
            "are delivered again after its heartbeat timeout (1 min)"
            + ("; results are in Redis for 10 min" if results else "; results are not kept")
        )

    def prepare(self):
        super().prepare()
        import dramatiq_tasks

        self._actor = dramatiq_tasks.nothing

    def submit(self):
        self._actor.send()

    def answer(self):
        self._actor.send().get_result(block=True, timeout=int(PATIENCE_SECONDS * 1000))

    def left(self):
        return self._broker.hlen("dramatiq:default.msgs")

    def go(self, workers):
        command = [sys.executable, "-m", "dramatiq", "dramatiq_tasks", "--processes", str(workers), "--threads", "1"]
        self._start(command, self.env)
        self._awaited = workers

    def ready(self):
        until(lambda: len(self._logged("Worker process is ready")) >= self._awaited, "Dramatiq's workers")
