"""The measurement of pools that the server's binary brings."""

import json
import subprocess
import sys

import pytest

from everbeat.testing import find_binary

pytestmark = [pytest.mark.real, pytest.mark.skipif(find_binary() is None, reason="there is no everbeat binary")]


def test_pools_of_python_workers_are_measured():
    counts = ["--pool-runs", "100", "--pool-workers", "1,2", "--latency-runs", "10"]
    command = [
        find_binary(),
        "bench",
        "--no-sqlite",
        "--jobs",
        "0",
        "--links",
        "0",
        "--python",
        sys.executable,
        *counts,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    measured = json.loads(ended.stdout)["pools"]["workers"]
    assert [(each["workers"], each["runs"]) for each in measured] == [(1, 100), (2, 100)]
    assert all(each["runs_per_s"] > 0 and each["submit_to_succeeded_ms"]["p50"] > 0 for each in measured)
