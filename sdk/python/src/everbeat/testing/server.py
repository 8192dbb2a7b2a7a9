"""A real server for a test, that leaves nothing behind."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import Any, Dict, List, Mapping, Optional

from everbeat.client import AsyncClient, Client, EverbeatError

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0

# What the server prints once it answers, before its address.
_READY = "is ready at "


def find_binary() -> Optional[str]:
    """The server's binary: ``EVERBEAT_BIN``, else ``everbeat`` on the path."""
    return os.environ.get("EVERBEAT_BIN") or shutil.which("everbeat")


class EverbeatServer:
    """A server with a folder and a port of its own.

    With ``app`` it has a pool whose workers perform that app, like ``"tasks:app"``, in the current folder. ``config``
    says more of its configuration, table by table: ``{"runs": {"max_attempts": 1}, "pool": [{"name": ...}]}``.
    """

    def __init__(
        self,
        binary: Optional[str] = None,
        *,
        app: Optional[str] = None,
        workers: int = 1,
        slots: int = 4,
        env: Optional[Mapping[str, str]] = None,
        config: Optional[Mapping[str, Any]] = None,
    ) -> None:
        found = binary or find_binary()
        if found is None:
            raise FileNotFoundError("there is no everbeat binary: set EVERBEAT_BIN, or put `everbeat` on the path")
        self._binary = found
        # Not pytest's own folder: the path of a Unix socket may have 107 characters.
        self.folder = tempfile.mkdtemp(prefix="everbeat-")
        self._env = dict(env or {})
        self._listen = "127.0.0.1:0"
        self._process: Optional[subprocess.Popen[str]] = None
        self._lines: List[str] = []
        self.url = ""
        # Work that a test leaves unfinished does not hold its end up.
        tables: Dict[str, Any] = {"replica": {"drain_grace": "500ms"}, "pool": []}
        if app:
            tables["pool"].append(_pool(app, workers, slots))
        for name, table in (config or {}).items():
            tables[name] = tables[name] + list(table) if name == "pool" else {**tables.get(name, {}), **table}
        self._write_config(_toml(tables))

    def __enter__(self) -> "EverbeatServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the server, and returns when it answers. After `kill` it starts again at the same address."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}
        environ.update(self._env)
        # Workers import this very package, also if it is not installed.
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_package_root(), environ.get("PYTHONPATH")]))
        config, data = f"{self.folder}/everbeat.toml", f"{self.folder}/data"
        self._process = subprocess.Popen(
            [self._binary, "serve", "--config", config, "--listen", self._listen, "--data-dir", data],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process, ready), daemon=True)
        self._reader.start()
        if not ready.wait(_START_SECONDS) or not self.url:
            self.stop()
            raise RuntimeError(f"the everbeat server did not start:\n{self.log}")
        self._listen = self.url.partition("://")[2]

    def client(self, **settings: Any) -> Client:
        """A client of this server."""
        return Client(self.url, **settings)

    def async_client(self, **settings: Any) -> AsyncClient:
        """A client of this server for an event loop."""
        return AsyncClient(self.url, **settings)

    @property
    def pid(self) -> int:
        """The number of the server's process."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has printed."""
        return "".join(self._lines)

    def kill(self) -> None:
        """Kills the server in the middle of everything, as a crash would. What it keeps stays for `start`."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def stop(self) -> None:
        """Ends the server, its jobs and its workers, and removes its folder."""
        if self._process is not None and self._process.poll() is None:
            if self.url:
                self._cancel_jobs()
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _cancel_jobs(self) -> None:
        """Jobs outlive their server on purpose."""
        with contextlib.suppress(EverbeatError):
            client = self.client(patience=2)
            jobs = [job for job in client.jobs.list() if not job.is_finished]
            for job in jobs:
                client.jobs.cancel(job.id)
            for job in jobs:
                client.jobs.wait(job.id, timeout=_STOP_SECONDS)

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._reader.join(_STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            if _READY in line and not ready.is_set():
                self.url = line.partition(_READY)[2].split()[0]
                ready.set()
        ready.set()  # It has ended.

    def _write_config(self, text: str) -> None:
        with open(f"{self.folder}/everbeat.toml", "w", encoding="utf-8") as file:
            file.write(text)


def _pool(app: str, workers: int, slots: int) -> Dict[str, Any]:
    return {
        "name": "test",
        "command": [sys.executable, "-m", "everbeat.worker", app],
        "size": workers,
        "slots": slots,
        "cwd": os.getcwd(),
        "env": {"PYTHONPATH": os.pathsep.join(filter(None, [_package_root(), os.environ.get("PYTHONPATH")]))},
    }


def _toml(tables: Mapping[str, Any]) -> str:
    lines: List[str] = []
    for name, table in tables.items():
        for each in table if isinstance(table, list) else [table]:
            lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
            lines.extend(f"{key} = {_toml_value(value)}" for key, value in each.items())
    return "\n".join([*lines, ""])


def _toml_value(value: Any) -> str:
    """TOML writes texts, numbers and lists as JSON does; a table it does not."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value)


def _package_root() -> str:
    """The folder that holds this package."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
