"""What a worker is said to be, by what it does."""

import os
import signal
import time

import pytest
from trials import alive, kill, trial_pool

pytestmark = pytest.mark.real

ONCE = {"max_attempts": 1, "cancel_grace": "200ms"}


def classes_of(server, worker_id, until_class, seconds=20):
    """The classes that a worker is seen to have, up to this one."""
    seen = []

    def look():
        worker = server.worker(worker_id)
        if worker is not None and worker["class"] not in seen[-1:]:
            seen.append(worker["class"])
        return until_class in seen

    server.until(look, f"the class {until_class} after {seen}", seconds)
    return seen


def test_computing_with_the_interpreter_held_is_busy_until_the_deadline(trial):
    server = trial(trial_pool())
    server.ready(2)
    run = server.submit("hold_gil_computing", policy={"deadline": "6s", **ONCE})
    worker = server.worker_of(run)
    classes_of(server, worker["id"], "busy")

    def ended():
        if server.run(run)["state"] != "running":
            return True
        assert alive(worker["pid"])
        return False

    server.until(ended, "the deadline")
    assert server.outcomes(run) == ["timed_out"]
    assert server.verdict(run)["reason"] == "deadline"
    server.until(lambda: not alive(worker["pid"]), "the end of the worker")


def test_a_worker_that_computes_long_and_ends_is_left_alone(trial):
    server = trial(trial_pool())
    server.ready(2)
    run = server.submit("hold_gil_computing", {"seconds": 4})
    classes_of(server, server.worker_of(run)["id"], "busy")
    assert server.wait(run).unwrap() == "computed"
    assert server.outcomes(run) == ["succeeded"]
    assert server.pool()["restarts"] == 0


def test_blocked_with_the_interpreter_held_is_hung_and_ended_with_its_stacks(trial):
    server = trial(trial_pool())
    server.ready(2)
    run = server.submit("hold_gil_idle", policy={**ONCE, "on_lost": "fail"})
    worker = server.worker_of(run)
    classes_of(server, worker["id"], "hung")
    assert server.wait(run).state == "failed"
    verdict = server.verdict(run)
    assert verdict["reason"] == "worker_hung"
    assert verdict["evidence"]["class"] == "hung"
    assert "hold_gil_idle" in verdict["evidence"]["stacks"]
    assert "trial_tasks.py" in verdict["evidence"]["stacks"]
    server.ready(2)


def test_a_deadlock_behind_pongs_is_stalled(trial):
    server = trial(trial_pool())
    server.ready(2)
    run = server.submit("deadlock", policy={"stall_timeout": "1s", **ONCE})
    worker = server.worker_of(run)
    server.began(run)
    pongs = server.worker(worker["id"])["pongs"]
    server.until(lambda: (server.worker(worker["id"]) or {"pongs": 0})["pongs"] > pongs, "a pong")
    classes_of(server, worker["id"], "stalled")
    assert server.wait(run).state == "failed"
    assert server.outcomes(run) == ["stalled"]
    assert server.verdict(run)["reason"] == "no_progress"
    server.until(lambda: not alive(worker["pid"]), "the end of the worker")


def test_a_stopped_worker_is_stopped_and_ended_past_its_ttl(trial):
    server = trial(trial_pool(worker_ttl="4s"))
    server.ready(2)
    run = server.submit("stubborn", {"how": "sleeps"}, policy={"on_lost": "fail"})
    server.began(run)
    worker = server.worker_of(run)
    os.kill(worker["pid"], signal.SIGSTOP)
    at = time.monotonic()
    classes_of(server, worker["id"], "stopped")
    server.until(lambda: not alive(worker["pid"]), "the end of the worker")
    assert time.monotonic() - at > 3, "it was not ended at once"
    assert server.verdict(run)["reason"] == "worker_stopped"


def test_a_worker_that_is_continued_in_time_goes_on(trial):
    server = trial(trial_pool())
    server.ready(2)
    path = server.scratch / "go"
    run = server.submit("wait_for", {"path": str(path)})
    server.began(run)
    worker = server.worker_of(run)
    os.kill(worker["pid"], signal.SIGSTOP)
    classes_of(server, worker["id"], "stopped")
    time.sleep(3)  # How long a worker may be stopped is the test: twice the timeout of its pings.
    os.kill(worker["pid"], signal.SIGCONT)
    classes_of(server, worker["id"], "alive")
    path.touch()
    assert server.wait(run).unwrap() == worker["pid"]
    assert server.outcomes(run) == ["succeeded"]


def test_too_much_memory_is_the_reason_of_the_end(trial):
    server = trial(trial_pool(max_memory="150MiB"))
    server.ready(2)
    run = server.submit("grow", {"megabytes": 400}, policy={"on_lost": "fail"})
    worker = server.worker_of(run)
    assert server.wait(run).state == "failed"
    verdict = server.verdict(run)
    assert verdict["reason"] == "worker_out_of_memory"
    server.until(lambda: not alive(worker["pid"]), "the end of the worker")
    server.ready(2)
    assert server.wait(server.submit("reply", {"value": 1})).unwrap() == 1


def test_a_dead_worker_is_dead(trial):
    server = trial(trial_pool(size=1))
    (worker,) = server.ready(1)
    kill(worker["pid"])
    server.until(lambda: server.worker(worker["id"]) is None, "its end")
    (other,) = server.ready(1)
    assert (other["class"], other["restarts"], other["last_exit"]) == ("alive", 1, "killed by signal 9")
