"""Workers as real processes, against a server that the test plays."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # Before gRPC is imported: these tests start processes.

import pytest
from fake_server import PATIENCE, FakeServer

APPS = Path(__file__).parent / "apps"


class WorkerProcess:
    """``python -m everbeat.worker`` with what a pool gives its workers."""

    def __init__(self, *arguments, env=None, socket=None, secret=b"s3cret", cwd=APPS, dump_path=None) -> None:
        self.dump_path = dump_path
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT")}
        environ.update({"PYTHONUNBUFFERED": "", **(env or {})})
        passed = []
        if socket is not None:
            secret_out, secret_in = os.pipe()
            life_out, self.life_in = os.pipe()
            os.write(secret_in, secret)
            os.close(secret_in)
            passed = [secret_out, life_out]
            environ.update(
                EVERBEAT_WORKER_SOCKET=str(socket),
                EVERBEAT_WORKER_SECRET_FD=str(secret_out),
                EVERBEAT_WORKER_LIFE_FD=str(life_out),
                EVERBEAT_POOL="testers",
                EVERBEAT_SLOTS="4",
            )
            if dump_path is not None:
                environ["EVERBEAT_WORKER_DUMP_PATH"] = str(dump_path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "everbeat.worker", *arguments],
            cwd=cwd,
            env=environ,
            pass_fds=passed,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for fd in passed:
            os.close(fd)
        self.lines = []
        self._line = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream) -> None:
        for line in stream:
            with self._line:
                self.lines.append(line.rstrip("\n"))
                self._line.notify_all()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def signal(self, number) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once all output was read."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def expect_line(self, text: str) -> str:
        with self._line:
            found = self._line.wait_for(lambda: [line for line in self.lines if text in line], PATIENCE)
        assert found, f"{text!r} was not said:\n{self.output}"
        return found[0]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    server = FakeServer(f"unix:{tmp_path}/sock")
    server.path = tmp_path / "sock"
    yield server
    server.stop()


@pytest.fixture
def remote_server():
    server = FakeServer("127.0.0.1:0")
    yield server
    server.stop()


@pytest.fixture
def start():
    """Starts workers, and leaves none behind."""
    workers = []

    def start(*arguments, **settings) -> WorkerProcess:
        worker = WorkerProcess(*(arguments or ("tasks:app",)), **settings)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.end()


@pytest.fixture
def worker(server, start, tmp_path):
    """A worker of a pool, connected to `server`."""
    return start(socket=server.path, dump_path=tmp_path / "dump")
