"""Pools that are restarted and scaled, and workers that are pinged, dumped, drained and restarted, under load."""

import contextlib
import threading
import time

import pytest
from trials import alive, trial_pool

pytestmark = pytest.mark.real

TASKS = """
import os, time
import everbeat
app = everbeat.App()

@app.task
def version(ctx, seconds=0.05):
    time.sleep(seconds)
    return {version}
"""


@contextlib.contextmanager
def load(server, task="version", given=None):
    """Submits runs without end; afterwards answers them."""
    ids, over = [], threading.Event()

    def submit():
        while not over.is_set():
            ids.extend(server.submit_many(task, [given] * 4))
            over.wait(0.1)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield ids
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def watched(server, least):
    """Sees to it that there are always so many workers that serve."""
    seen, over = [], threading.Event()

    def look():
        while not over.is_set():
            seen.append(server.pool()["ready"])
            over.wait(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert min(seen) >= least, seen


def no_run_was_lost(server, ids):
    ended = [server.wait(run) for run in ids]
    assert all(run.succeeded for run in ended), [run for run in ended if not run.succeeded][:3]
    assert all(server.outcomes(run) == ["succeeded"] for run in ids)
    assert server.verdicts() == []
    return [run.result for run in ended]


@pytest.mark.parametrize("size", [1, 4])
def test_a_restart_under_load_brings_new_code_without_a_gap(trial, tmp_path, size):
    code = tmp_path / "versioned.py"
    code.write_text(TASKS.format(version=1))
    pool = trial_pool(size=size, cwd=str(tmp_path))
    pool["command"][-1] = "versioned:app"
    # Two sources of the same length in the same second would share what Python compiled.
    pool["env"]["PYTHONDONTWRITEBYTECODE"] = "1"
    server = trial(pool)
    old = {worker["id"] for worker in server.ready(size)}
    with load(server) as ids, watched(server, size):
        server.until(lambda: len(ids) > 20, "load")
        code.write_text(TASKS.format(version=2))
        server.cli("pool", "restart", "trial")
        server.until(lambda: not old & {worker["id"] for worker in server.workers()}, "new workers")
    results = no_run_was_lost(server, ids)
    assert set(results) == {1, 2}
    after = server.submit_many("version", [None] * 20)
    assert {server.wait(run).unwrap() for run in after} == {2}
    assert len(server.ready(size)) == size


def test_broken_new_code_leaves_the_old_workers_at_work(trial, tmp_path):
    code = tmp_path / "versioned.py"
    code.write_text(TASKS.format(version=1))
    pool = trial_pool(size=2, cwd=str(tmp_path))
    pool["command"][-1] = "versioned:app"
    pool["env"]["PYTHONDONTWRITEBYTECODE"] = "1"
    server = trial(pool)
    old = {worker["id"] for worker in server.ready(2)}
    with load(server) as ids:
        code.write_text("raise RuntimeError('half-written')")
        server.cli("pool", "restart", "trial")
        server.until(lambda: server.pool()["state"] == "degraded", "a degraded pool")
        assert "half-written" in server.pool()["degraded_reason"]
        assert old == {worker["id"] for worker in server.workers() if worker["state"] in ("ready", "busy")}
        code.write_text(TASKS.format(version=2))
        server.cli("pool", "restart", "trial")
        server.until(lambda: not old & {worker["id"] for worker in server.workers()}, "new workers")
    no_run_was_lost(server, ids)
    server.until(lambda: server.pool()["state"] == "ready", "a pool that is well")


def test_a_pool_is_scaled_up_and_down_under_load(trial):
    server = trial(trial_pool(size=2))
    server.ready(2)
    with load(server, "work", {"seconds": 0.05}) as ids, watched(server, 1):
        for size in (6, 1, 4):
            assert server.cli("pool", "scale", "trial", str(size))["size"] == size
            server.until(lambda size=size: server.pool()["ready"] == len(server.workers()) == size, f"{size} workers")
    no_run_was_lost(server, ids)
    server.cli("pool", "scale", "trial", "0")
    server.until(lambda: not server.workers(), "no worker")
    run = server.submit("reply", {"value": 1})
    time.sleep(0.3)  # Nothing tells that nobody takes it: that it waits for so long is the test.
    assert server.run(run)["state"] == "ready"
    server.cli("pool", "scale", "trial", "1")
    assert server.wait(run).unwrap() == 1


def test_a_pool_that_is_drained_takes_no_work_until_it_is_resumed(trial):
    server = trial(trial_pool(size=2))
    before = {worker["id"] for worker in server.ready(2)}
    path = server.scratch / "go"
    first = server.submit("wait_for", {"path": str(path)})
    server.began(first)
    server.cli("pool", "drain", "trial")
    second = server.submit("reply", {"value": 2})
    path.touch()
    assert server.wait(first).succeeded
    time.sleep(0.3)  # Nothing tells that nobody takes it: that it waits for so long is the test.
    assert (server.run(second)["state"], server.pool()["state"]) == ("ready", "paused")
    assert {worker["id"] for worker in server.workers()} == before
    server.cli("pool", "resume", "trial")
    assert server.wait(second).unwrap() == 2


def test_a_worker_is_pinged_dumped_drained_and_restarted(trial):
    server = trial(trial_pool(size=2))
    server.ready(2)
    path = server.scratch / "go"
    run = server.submit("wait_for", {"path": str(path)})
    server.began(run)
    worker = server.worker_of(run)
    assert 0 < server.cli("worker", "ping", worker["id"])["round_trip_ms"] < 5000
    dumped = server.cli_raw("worker", "dump", worker["id"]).stdout
    assert "in wait_for" in dumped
    assert "trial_tasks.py" in dumped
    server.cli("worker", "drain", worker["id"])
    server.ready(2)  # Another takes its place; the one that drains finishes first.
    assert server.worker(worker["id"])["state"] == "draining"
    assert alive(worker["pid"])
    path.touch()
    assert server.wait(run).unwrap() == worker["pid"]
    server.until(lambda: server.worker(worker["id"]) is None, "its end")
    assert not alive(worker["pid"])
    other = server.workers()[0]
    with watched(server, 2):
        server.cli("worker", "restart", other["id"])
        server.until(lambda: server.worker(other["id"]) is None, "its end")
        server.ready(2)
    assert server.verdicts() == []
    assert server.pool()["restarts"] == 0


def test_the_stacks_of_a_worker_that_cannot_answer_are_told_by_its_process(trial):
    server = trial(trial_pool(size=1, ping_timeout="20s"))
    server.ready(1)
    run = server.submit("hold_gil_idle", {"seconds": 12})
    server.began(run)
    worker = server.worker_of(run)
    dumped = server.cli_raw("worker", "dump", worker["id"])
    assert "hold_gil_idle" in dumped.stdout, dumped.stderr
    refused = server.cli_raw("worker", "ping", worker["id"])
    assert refused.returncode != 0
    assert "does not answer" in refused.stderr
    assert server.wait(run).succeeded
