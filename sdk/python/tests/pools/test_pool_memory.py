"""Workers that the kernel kills for lack of memory."""

import os
from pathlib import Path

import pytest
from trials import kill, trial_pool

pytestmark = pytest.mark.real

# A small worker has room, and a hungry one has not.
LIMIT_BYTES = 128 << 20
HUNGRY_MIB = 512


@pytest.fixture
def limited():
    """A memory cgroup of version 1, below that of this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((cgroup for _, kind, cgroup in (line.split(":", 2) for line in lines) if kind == "memory"), None)
    folder = Path(f"/sys/fs/cgroup/memory{own}/everbeat-trial-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    (folder / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    yield folder
    folder.rmdir()


def settled(server, seconds):
    """Waits until the guardian has looked at its worker: every 2 s. A count within 4 s before a death counts."""
    return server.until(lambda: server.workers()[0]["uptime_ms"] >= seconds * 1000, f"a worker of {seconds} s")


def test_a_worker_that_the_kernel_kills_for_lack_of_memory_is_judged_so(limited, trial):
    plain = trial_pool(size=1)
    command = ["sh", "-c", f'echo $$ >{limited}/cgroup.procs && exec "$0" "$@"', *plain["command"]]
    server = trial({**plain, "command": command})
    server.ready(1)
    settled(server, 2.5)
    run = server.submit("eat", {"mebibytes": HUNGRY_MIB}, policy={"on_lost": "fail"})
    verdict = server.verdict(run)
    assert verdict["reason"] == "worker_out_of_memory"
    assert verdict["evidence"]["out_of_memory_counted_by"] == "own_cgroup"
    server.ready(1)
    # A kill by somebody else, later, is none for lack of memory.
    settled(server, 5)
    run = server.submit("stubborn", {"how": "sleeps"}, policy={"on_lost": "fail"})
    server.began(run)
    kill(server.worker_of(run)["pid"])
    assert server.verdict(run)["reason"] == "worker_died"
