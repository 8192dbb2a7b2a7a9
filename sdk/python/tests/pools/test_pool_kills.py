"""Workers that are killed: how soon it is known, and what becomes of their work."""

import os
import random
import select
import signal
import time

import pytest
from trials import LONG, kill, seconds_of, spread, tell, trial_pool

pytestmark = pytest.mark.real

# A run that is lost goes on at once.
KEEN = {"max_attempts": 50, "backoff": {"initial": "10ms", "max": "50ms"}}


def test_a_killed_worker_is_judged_and_replaced_at_once(trial):
    server = trial(trial_pool(size=4))
    server.ready(4)
    path = server.scratch / "go"
    run = server.submit("wait_for", {"path": str(path)})
    server.began(run)
    victim = server.worker_of(run)
    at = time.time()
    kill(victim["pid"])
    verdict = server.verdict(run)
    assert verdict["reason"] == "worker_died"
    assert (verdict["subject"]["kind"], verdict["attempt"]) == ("run", 1)
    assert -0.1 < seconds_of(verdict["at"]) - at < 2
    server.until(lambda: server.run(run)["attempt"] == 2, "the next attempt", 2)
    other = server.worker_of(run)
    assert other["id"] != victim["id"]
    server.ready(4)
    path.touch()
    assert server.wait(run).unwrap() == other["pid"]
    assert server.pool()["restarts"] == 1


def test_death_is_judged_within_milliseconds(trial):
    """From the signal, and from the death that the kernel tells of, to the time of the verdict, by one clock."""
    server = trial(trial_pool(size=4), config={"store": {}})
    server.ready(4)
    died, judged = [], []
    for _ in range(200 if LONG else 10):
        run = server.submit("stubborn", {"how": "sleeps"}, policy={"on_lost": "fail"})
        server.began(run)
        pidfd = os.pidfd_open(server.worker_of(run)["pid"])
        death = select.poll()
        death.register(pidfd, select.POLLIN)
        at = time.time()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        death.poll()
        died.append(time.time() - at)
        os.close(pidfd)
        judged.append(seconds_of(server.verdict(run)["at"]) - at)
    since_death = spread([whole - death for whole, death in zip(judged, died)])
    if LONG:
        tell(trial="kill of a worker to its death", **spread(died))
        tell(trial="kill of a worker to verdict", **spread(judged))
        tell(trial="death of a worker to verdict", **since_death)
    assert since_death["p50_ms"] < 500, since_death
    server.ready(4)
    assert server.pool()["state"] == "ready", "workers that had work did not crash at their start"


def test_every_run_succeeds_once_while_workers_are_killed(trial):
    server = trial(trial_pool(size=8, ping_timeout="5s"))
    server.ready(8)
    path = server.scratch / "done"
    chance = random.Random(7)
    gaps = []
    for _ in range(30 if LONG else 3):
        runs = server.submit_many("work", [{"seconds": 0.05, "path": str(path)}] * 80, policy=KEEN)
        server.until(lambda: server.pool()["busy"] >= 2, "work")
        for victim in chance.sample([each for each in server.workers() if each["state"] == "busy"], 2):
            kill(victim["pid"])
        at = time.monotonic()
        ended = [server.wait(run) for run in runs]
        assert all(run.succeeded for run in ended)
        outcomes = [server.outcomes(run) for run in runs]
        assert all(each.count("succeeded") == 1 and each[-1] == "succeeded" for each in outcomes)
        assert sum(each.count("lost") for each in outcomes) <= 2
        server.ready(8)
        gaps.append(time.monotonic() - at)
    done = path.read_text().split()
    assert len(set(done)) == 80 * len(gaps)
    if LONG:
        tell(trial="kill of 2 of 8 to all runs done and 8 workers", **spread(gaps))
