"""Timers of the kernel that end a process whose threads cannot run."""

import subprocess
import sys

import pytest

BEGIN = """
import ctypes, os, sys, time
from everbeat.worker import clock
from everbeat.worker.guard import Guard
guard = Guard()
guard.begin()
guard.vouch(clock.now(), 0.5)
def hold():
    ctypes.PyDLL(None).sleep(1)
"""


@pytest.mark.parametrize(
    ("then", "ends_with"),
    [
        ("hold()", -62),
        ("guard.begin(); guard.end(); hold()", -62),
        ("guard.vouch(clock.now(), 60); hold()", 0),
        ("guard.end(); hold()", 0),
        ("guard.end(); guard.vouch(clock.now(), 0.1); hold()", 0),
        (
            "child = os.fork()\nif not child: hold(); os._exit(7)\nguard.end()\nos._exit(os.waitpid(child, 0)[1] >> 8)",
            7,
        ),
        ("os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1)'])", 0),
    ],
)
def test_a_process_is_ended_while_unfenced_work_runs_that_nobody_vouches_for(then, ends_with):
    assert subprocess.run([sys.executable, "-c", f"{BEGIN}\n{then}"], timeout=30, check=False).returncode == ends_with
