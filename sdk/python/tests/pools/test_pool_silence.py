"""Servers and machines that stop for a while: who ends, and who must not."""

import contextlib
import re
import signal
import subprocess
import sys
import time

import pytest
from trials import LONG, alive, trial_pool

pytestmark = pytest.mark.real


def test_workers_of_a_stopped_server_end_themselves(trial):
    server = trial(trial_pool(size=3, worker_ttl="2s"))
    before = server.ready(3)
    path = server.scratch / "go"
    run = server.submit("wait_for", {"path": str(path)})
    server.began(run)
    server.signal(signal.SIGSTOP)
    at = time.monotonic()
    server.until(lambda: not any(alive(worker["pid"]) for worker in before), "the end of the workers", 6)
    assert time.monotonic() - at > 1, "they were pinged just before"
    server.signal(signal.SIGCONT)
    said = server.until(
        lambda: re.findall("everbeat::worker: EMERGENCY_SHUTDOWN:no_ping:[0-9]+ ", server.log), "their last words"
    )
    server.ready(3)
    assert len(said) == 3
    assert not {worker["id"] for worker in before} & {worker["id"] for worker in server.workers()}
    path.touch()
    server.wait(run).unwrap()
    assert server.outcomes(run) == ["lost", "succeeded"]
    verdicts = server.verdicts(run)
    assert len(verdicts) == 1
    assert verdicts[0]["evidence"]["exit_code"] == 1
    assert any("EMERGENCY_SHUTDOWN:no_ping:" in line for line in verdicts[0]["evidence"]["last_lines"])


def test_a_server_that_stops_for_a_while_kills_nobody(trial):
    server = trial(trial_pool(size=4, worker_ttl="60s"))
    before = {worker["id"] for worker in server.ready(4)}
    path = server.scratch / "go"
    run = server.submit("wait_for", {"path": str(path)})
    server.began(run)
    server.signal(signal.SIGSTOP)
    time.sleep(30 if LONG else 8)  # How long the server is stopped is the test: many timeouts of pings.
    server.signal(signal.SIGCONT)
    path.touch()
    server.wait(run).unwrap()
    assert server.outcomes(run) == ["succeeded"]
    time.sleep(3)  # Nothing tells that nobody is judged: that all is well for so long is the test.
    assert {worker["id"] for worker in server.workers()} == before
    assert (server.pool()["restarts"], server.verdicts()) == (0, [])


@contextlib.contextmanager
def spinning(count):
    spinners = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()


def test_a_busy_machine_kills_nobody(trial):
    server = trial(trial_pool(size=4, ping_timeout="2s"))
    before = {worker["id"] for worker in server.ready(4)}
    with spinning(64 if LONG else 16):
        until = time.monotonic() + (60 if LONG else 15)
        finished = 0
        while time.monotonic() < until:
            runs = server.submit_many("work", [{"seconds": 0.01}] * 8)
            ended = [server.wait(run, 60) for run in runs]
            assert [(run.state, run.attempt) for run in ended] == [("succeeded", 1)] * 8, server.log[-4000:]
            finished += len(runs)
    assert finished
    assert {worker["id"] for worker in server.workers()} == before
    assert (server.pool()["restarts"], server.verdicts()) == (0, [])


def test_work_that_must_stop_and_holds_the_interpreter_is_ended_by_its_workers_timer(trial):
    replica = {"heartbeat_interval": "300ms", "heartbeat_timeout": "3s"}
    # The worker's own time to live is longer, and nobody looks whether it hangs.
    server = trial(trial_pool(size=1, ping_timeout="60s", worker_ttl="60s"), config={"replica": replica})
    server.ready(1)
    policy = {"when_isolated": "stop", "on_lost": "fail", "max_attempts": 1}
    run = server.submit("hold_gil_idle", policy=policy)
    worker = server.worker_of(run)
    ended = server.wait(run)
    assert (ended.state, server.outcomes(run)) == ("failed", ["lost"])
    assert not alive(worker["pid"])
    verdict = server.verdict(run)
    assert (verdict["reason"], verdict["evidence"]["exit_signal"]) == ("worker_died", 62)
    assert "ended by its own timer (signal 62): nobody vouched for its work" in ended.error["message"]
    assert "ended by its own timer" in server.pool()["last_exit"]
