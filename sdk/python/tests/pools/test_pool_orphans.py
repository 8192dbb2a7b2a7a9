"""Nothing of a pool outlives its server."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
import uuid

import pytest
from trials import LONG, Figures, alive, kill, marked, spread, tell, trial_pool

pytestmark = pytest.mark.real

# Of Linux: a lock that belongs to an open file.
F_OFD_SETLK = 37
CONTAINMENTS = {"": "cgroup", "cgroup": "pid_namespace", "cgroup,namespace": "tree_walk"}


@pytest.fixture
def mark():
    mark = f"trial-{uuid.uuid4().hex}"
    yield mark
    left = marked(mark)
    for pid in left:
        kill(pid)
    assert not left, "something was left at the end of the trial"


def start(trial, mark, mask="", size=2):
    environ = {"EVERBEAT_POOL_MASK": mask} if mask else {}
    server = trial(trial_pool(size=size, env={"TRIAL_MARK": mark}), env=environ)
    server.ready(size)
    if mask and server.pool()["containment"] != CONTAINMENTS[mask]:
        pytest.skip("only a debug binary can be told what the machine does not have")
    return server


def with_broods(server, mark, size=2):
    """Has each worker start a brood; answers who lives then."""
    runs = [server.submit("brood", {"mark": mark}, policy={"on_lost": "fail"}) for _ in range(size)]
    for run in runs:
        server.began(run)
    # Of each worker: itself and five that it started.
    return server.until(lambda: len(marked(mark)) >= 6 * size and marked(mark), "the broods")


def gone_after(server, mark, since, seconds=1.0):
    server.until(lambda: not marked(mark), "the end of all", seconds - (time.monotonic() - since), 0.005)
    return time.monotonic() - since


@pytest.mark.parametrize("mask", CONTAINMENTS)
def test_nothing_lives_a_second_after_the_server_was_killed(mark, trial, mask):
    server = start(trial, mark, mask)
    took = []
    for _ in range(50 if LONG else 3):
        assert server.pool()["containment"] == CONTAINMENTS[mask]
        with_broods(server, mark)
        at = time.monotonic()
        server.signal(signal.SIGKILL)
        took.append(gone_after(server, mark, at))
        server.kill()
        server.start()
        server.ready(2)
    if LONG:
        tell(trial="kill of the server to nothing left", containment=CONTAINMENTS[mask], **spread(took))


@pytest.mark.parametrize("mask", CONTAINMENTS)
def test_what_outlived_server_and_guardian_is_swept_before_the_first_worker(mark, trial, mask):
    server = start(trial, mark, mask)
    for _ in range(10 if LONG else 1):
        before = with_broods(server, mark)
        guardians = server.guardians()
        assert len(guardians) == 1
        os.kill(guardians[0], signal.SIGSTOP)
        server.signal(signal.SIGSTOP)
        kill(guardians[0])
        server.kill()
        if not mask:
            time.sleep(0.5)  # Nothing tells that nobody ends them: that they live for so long is the test.
            assert marked(mark), "without a guardian, what workers started lives on until the sweep"
        server.start()
        server.until(server.workers, "the first worker", pause=0)
        assert not [pid for pid in before if alive(pid)]
        server.ready(2)
        assert mask or Figures(server).worker("orphans_total") > 0


def test_the_workers_of_another_server_are_not_touched(mark, trial):
    other = start(trial, f"{mark}-other")
    run = other.submit("brood", {"mark": f"{mark}-other"})
    other.began(run)
    theirs = other.until(lambda: len(marked(f"{mark}-other")) == 7 and marked(f"{mark}-other"), "their brood")
    server = start(trial, mark)
    with_broods(server, mark)
    guardian = server.guardians()[0]
    os.kill(guardian, signal.SIGSTOP)
    server.kill()
    kill(guardian)
    server.start()
    server.ready(2)
    assert sorted(marked(f"{mark}-other")) == sorted(theirs)
    assert other.run(run)["attempt"] == 1
    assert other.pool()["restarts"] == 0
    other.kill()
    other.until(lambda: not marked(f"{mark}-other"), "their end", 2)


def test_a_guardian_that_is_killed_takes_its_workers_along_and_is_replaced(mark, trial):
    server = start(trial, mark)
    before = with_broods(server, mark)
    at = time.monotonic()
    kill(server.guardians()[0])
    server.until(lambda: not [pid for pid in before if alive(pid)], "the end of all", 2, 0.005)
    if LONG:
        tell(trial="kill of the guardian to nothing left", ms=round(1000 * (time.monotonic() - at)))
    server.ready(2)
    assert server.wait(server.submit("reply", {"value": 1})).unwrap() == 1


def test_a_worker_that_dies_takes_along_what_it_started(mark, trial):
    server = start(trial, mark)
    run = server.submit("brood", {"mark": mark}, policy={"on_lost": "fail"})
    server.began(run)
    server.until(lambda: len(marked(mark)) == 7, "the brood")
    kill(server.worker_of(run)["pid"])
    server.until(lambda: len(marked(mark)) <= 2, "the end of the brood", 2)
    assert server.wait(run).state == "failed"


def test_a_server_that_is_asked_to_end_leaves_nothing(mark, trial):
    server = start(trial, mark)
    with_broods(server, mark)
    server.stop()
    assert not marked(mark)


def test_what_a_server_left_is_ended_also_if_that_server_passed_for_alive_at_first(mark, trial):
    server = start(trial, mark, size=1)
    server.signal(signal.SIGTERM)
    server._wait()
    # As a server leaves it whose kernel has not let go of its lock yet.
    nonce = uuid.uuid4().hex
    folder = server.scratch / "data" / "pools" / nonce
    (folder / "0").mkdir(parents=True)
    environ = {"EVERBEAT_POOL_TAG": f"{nonce}-0", "TRIAL_MARK": mark}
    orphan = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env=environ)
    with open(folder / "lock", "w") as lock:
        fcntl.fcntl(lock, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        server.start()
        server.ready(1)
        time.sleep(1.5)
        assert orphan.poll() is None
        assert folder.exists()
    server.until(lambda: orphan.poll() is not None, "its end")
    server.until(lambda: not folder.exists(), "the end of its folder")
    server.expect_line("processes that an earlier server had left were ended")
    assert server.pool()["restarts"] == 0
