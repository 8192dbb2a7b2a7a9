"""A configuration with one pool, and what the command line shows of its work."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
from trials import PATIENCE, find_binary, trial_pool

pytestmark = pytest.mark.real

WORKER = [sys.executable, "-m", "everbeat.worker", "newcomer_tasks:app"]


@pytest.fixture
def server(trial):
    return trial(trial_pool(command=WORKER, size=4))


class Told:
    """A command of the binary that goes on, and the lines of its stdout so far."""

    def __init__(self, server, *arguments) -> None:
        self.lines = []
        self.process = subprocess.Popen(
            [find_binary(), *arguments, "--url", server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self._reader.start()

    def end(self):
        """Its exit code, and what it said on stderr."""
        said = self.process.stderr.read()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code, said


def test_a_task_is_submitted_before_the_first_worker_serves(server):
    ended = server.cli_raw("submit", "add", "--input", '{"a": 1, "b": 2}', "--wait")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"sum": 3}), ended.stderr
    assert " succeeded (attempt 1, tries 1 of 3" in ended.stderr
    server.ready(4)
    refused = server.cli_raw("submit", "ad")
    assert refused.returncode == 3
    assert 'task "ad" is unknown' in refused.stderr
    assert "known tasks are add, " in refused.stderr


def test_a_pool_whose_workers_cannot_start_is_named_with_the_task_that_nobody_knows(trial):
    server = trial(trial_pool(command=["no-such-python"]))
    refused = server.cli_raw("submit", "add")
    assert refused.returncode == 3
    assert 'the pool "trial" has no worker yet' in refused.stderr
    assert "everbeat show trial" in refused.stderr
    shown = server.cli_raw("show", "trial").stdout
    assert '"no-such-python" cannot be started' in shown


def test_items_are_printed_while_the_generator_runs(server):
    gate = server.scratch / "gate"
    told = Told(server, "submit", "numbers", "--input", json.dumps({"gate": str(gate)}), "--follow")
    server.until(lambda: len(told.lines) == 2, "two items")
    assert told.process.poll() is None, "the generator has not ended"
    gate.touch()
    code, said = told.end()
    assert [json.loads(line) for line in told.lines] == [{"number": 1}, {"number": 2}, {"number": 3}, "counted"]
    assert code == 0, said


def test_an_exception_is_shown_with_its_traceback(server):
    once = ("--policy", '{"max_attempts": 1}')
    ended = server.cli_raw("submit", "divide", "--input", '{"by": 0}', "--wait", *once)
    assert (ended.returncode, ended.stdout) == (1, "")
    first, traceback = re.search(r"(run .*)\n(Traceback.*)", ended.stderr, re.S).groups()
    assert " failed (attempt 1, tries 1 of 1" in first
    assert 'newcomer_tasks.py", line ' in traceback
    assert traceback.endswith("ZeroDivisionError: division by zero\n")
    assert ended.stderr.count("ZeroDivisionError") == 1, "it is said once"
    run = re.search(r"run (\S+)", first)[1]
    shown = server.cli_raw("show", run).stdout
    assert "attempt 1 ended with\nTraceback" in shown
    assert server.cli_raw("logs", run).stdout == "warning: dividing by 0\n"


def test_progress_is_shown_while_a_run_goes_on(server):
    gate = server.scratch / "gate"
    run = server.submit("numbers", {"gate": str(gate)})
    server.until(lambda: "2/3 number 2" in server.cli_raw("show", run).stdout, "progress in `show`")
    assert re.search(r"running +0/3 +2/3 number 2", server.cli_raw("ls", "runs").stdout)
    with on_a_terminal(server, "wait", run) as screen:
        server.until(lambda: "2/3 number 2" in screen(), "progress on the terminal")
        gate.touch()
        server.until(lambda: '"counted"' in screen(), "the result")


@contextlib.contextmanager
def on_a_terminal(server, *arguments):
    """Gives what a command has written to its terminal so far."""
    ours, its = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "LANG": "C.UTF-8"}
    process = subprocess.Popen(
        [find_binary(), *arguments, "--url", server.url], stdin=its, stdout=its, stderr=its, env=environ
    )
    os.close(its)
    seen = []

    def read():
        with contextlib.suppress(OSError):  # The other end is closed.
            while True:
                seen.append(os.read(ours, 4096))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield lambda: b"".join(seen).decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        reader.join(PATIENCE)
        os.close(ours)


def test_a_checkpoint_reaches_the_next_attempt(server):
    gate = server.scratch / "gate"
    run = server.submit("chapters", {"gate": str(gate)})
    server.until(lambda: "2/3 chapter 2" in server.cli_raw("show", run).stdout, "two chapters")
    gate.touch()
    ended = server.cli_raw("wait", run)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"attempt": 2, "began_at": 2}), ended.stderr
    explained = server.cli_raw("explain", run).stdout
    assert re.search(r"attempt 1 .* lost: its worker exited with code 9", explained), explained


def test_a_task_sees_a_cancel(server):
    seen = server.scratch / "seen"
    run = server.submit("until_cancelled", {"seen": str(seen)})
    server.began(run)
    asked = server.cli_raw("cancel", run)
    assert asked.returncode == 0
    assert run in asked.stdout + asked.stderr
    ended = server.cli_raw("wait", run)
    assert (ended.returncode, ended.stdout) == (5, ""), ended.stderr
    assert " cancelled (attempt 1" in ended.stderr
    assert seen.exists()
    empty = server.cli_raw("logs", run)
    assert (empty.stdout, empty.returncode) == ("", 0)
    assert "has logged nothing" in empty.stderr
