"""A server for trials, and what is seen of its processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from datetime import datetime
from pathlib import Path

from everbeat.testing import EverbeatServer, find_binary

APPS = Path(__file__).parent / "apps"
SOURCES = Path(__file__).parents[2] / "src"
# Whoever waits for something that must happen gives up after this.
PATIENCE = 30.0
# `EVERBEAT_TRIALS=long` makes trials longer, and has them print figures (with `pytest -s`).
LONG = os.environ.get("EVERBEAT_TRIALS") == "long"
# Pings, looks and graces that are short, and still patient enough for a machine that does other things besides.
QUICK = {
    "ping_interval": "200ms",
    "ping_timeout": "1500ms",
    "check_interval": "100ms",
    "worker_ttl": "20s",
    "grace_period": "500ms",
    "stop_grace": "1s",
}


def trial_pool(**settings):
    """A pool of Python workers, as a table of the configuration."""
    pool = {
        "name": "trial",
        "command": [sys.executable, "-m", "everbeat.worker", "trial_tasks:app"],
        "size": 2,
        "cwd": str(APPS),
        **QUICK,
        **settings,
    }
    if pool.get("protocol") == "lines":
        pool = {name: value for name, value in pool.items() if not name.startswith(("ping_", "worker_ttl"))}
    pool["env"] = {"PYTHONPATH": str(SOURCES), **pool.get("env", {})}
    return pool


class Trial(EverbeatServer):
    """A server, and what a trial asks of it."""

    def __init__(self, *pools, config=None, env=None, token=None) -> None:
        config = {"store": {"url": "memory:"}, **(config or {}), "pool": list(pools)}
        super().__init__(config=config, env=env)
        self.scratch = Path(self.folder)
        self.token = token

    def client(self, **settings):
        return super().client(**{"token": self.token, **settings})

    def ask(self, path, body=None, method=None):
        """What the server answers to a GET, or to a POST of the body."""
        method = method or ("GET" if body is None else "POST")
        data = None if method == "GET" else json.dumps(body or {}).encode()
        path = path if path.startswith("/") else f"/api/v1/{path}"
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        request.add_header("content-type", "application/json")
        if self.token:
            request.add_header("authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def submit(self, task, given=None, **settings):
        """The id of a new run. Its task may be unknown until a worker has said hello."""
        return self.client().runs.submit(task, given, accept_unknown=True, **settings).id

    def submit_many(self, task, inputs, **settings):
        runs = [{"task": task, "input": each, "accept_unknown": True, **settings} for each in inputs]
        return [accepted.id for accepted in self.client().runs.batch(runs)]

    def run(self, run_id):
        return self.ask(f"runs/{run_id}")

    def wait(self, run_id, seconds=PATIENCE):
        return self.client().runs.wait(run_id, timeout=seconds)

    def attempts(self, run_id):
        return self.ask(f"runs/{run_id}/attempts")["items"]

    def outcomes(self, run_id):
        return [attempt["outcome"] for attempt in self.attempts(run_id)]

    def verdicts(self, run_id=None):
        """Oldest first."""
        query = f"&run_id={run_id}" if run_id else ""
        return self.ask(f"verdicts?limit=1000{query}")["items"][::-1]

    def verdict(self, run_id):
        """The first verdict on an attempt of the run."""
        return self.until(lambda: self.verdicts(run_id), "a verdict")[0]

    def workers(self, pool=None):
        workers = self.ask("workers?limit=1000")["items"]
        return [worker for worker in workers if pool in (None, worker["pool"])]

    def worker(self, worker_id):
        return next((worker for worker in self.workers() if worker["id"] == worker_id), None)

    def worker_of(self, run_id):
        """The worker that performs the run."""

        def performing():
            return next((worker for worker in self.workers() if run_id in worker["performs"]), None)

        return self.until(performing, f"a worker for run {run_id}")

    def pool(self, name="trial"):
        return self.ask(f"pools/{name}")

    def ready(self, count, name="trial", seconds=PATIENCE):
        """Waits until so many workers serve; answers them."""
        self.until(lambda: self.pool(name)["ready"] == count, f"{count} workers that serve", seconds)
        return [worker for worker in self.workers(name) if worker["state"] in ("ready", "busy")]

    def began(self, run_id):
        """Waits until the run has said how far it is."""

        def begun():
            run = self.run(run_id)
            return run if run["state"] == "running" and run["progress"] else None

        return self.until(begun, f"progress of run {run_id}")

    def until(self, found, what, seconds=PATIENCE, pause=0.02):
        """What `found` finds, as soon as it finds anything."""
        give_up = time.monotonic() + seconds
        while True:
            seen = found()
            if seen:
                return seen
            if time.monotonic() > give_up:
                raise AssertionError(f"{what} did not come within {seconds} s; the server said:\n{self.log[-6000:]}")
            time.sleep(pause)

    def expect_line(self, text, seconds=PATIENCE):
        return self.until(lambda: [line for line in self.log.splitlines() if text in line], repr(text), seconds)

    def cli(self, *arguments):
        """What a command of the binary prints, as JSON."""
        ended = self.cli_raw(*arguments, "-o", "json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def cli_raw(self, *arguments):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}
        environ["EVERBEAT_URL"] = self.url
        return subprocess.run(
            [find_binary(), *arguments], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def guardians(self):
        """The processes that own the workers of this server."""
        return [pid for pid in processes() if parent(pid) == self.pid and b"guardian" in arguments_of(pid)]

    def signal(self, number):
        os.kill(self.pid, number)

    def memory(self):
        """Bytes that the server's own process holds."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024

    def cpu(self):
        """Seconds of processor time that the server's own process took."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
        super().stop()


class Figures(dict):
    """Figures by name and labels, as a server shows them now."""

    def __init__(self, server):
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        figures = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        super().__init__((name, float(value)) for name, _, value in figures)

    def worker(self, name):
        return self[f"everbeat_worker_{name}"]


def seconds_of(time_text):
    """An RFC 3339 time as seconds of this machine's wall clock."""
    return datetime.fromisoformat(time_text.replace("Z", "+00:00")).timestamp()


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent(pid):
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def arguments_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def environment_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def marked(mark):
    """Whoever carries the mark in arguments or environment, apart from the server and its guardians."""
    mark = mark.encode()

    def carries(pid):
        arguments = arguments_of(pid)
        if not arguments or b"\0serve\0" in arguments or b"guardian" in arguments:
            return False  # It is dead, or it is not of the workers.
        return mark in arguments or mark in environment_of(pid)

    return [pid for pid in processes() if pid != os.getpid() and carries(pid)]


def alive(pid):
    """Whether a process with this number runs. For processes that the test has seen just now."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def spread(values):
    """Figures of a number of measurements, in milliseconds."""
    values = sorted(1000 * value for value in values)
    at = lambda share: round(values[min(len(values) - 1, int(share * len(values)))], 2)  # noqa: E731
    return {"n": len(values), "p50_ms": at(0.5), "p99_ms": at(0.99), "most_ms": round(values[-1], 2)}


def tell(**figures):
    """Figures for people, of long trials."""
    print(json.dumps(figures), flush=True)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
