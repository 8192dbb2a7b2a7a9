"""Stacks on request."""

import queue
import signal
import time

from everbeat.worker import worker_pb2 as pb


def test_the_server_can_ask_for_stacks(server, worker):
    link = server.welcomed()
    link.work("hang_loop")
    link.expect_started()
    link.work("wait_for", run_id="r2", token=b"2", input='{"path": "/nonexistent"}')
    link.expect_started()
    link.send(dump=pb.Dump(sequence=7))
    stacks = link.expect("stacks", skip=("heartbeat",))
    assert stacks.sequence == 7
    assert "Thread MainThread:" in stacks.text
    assert "in hang_loop" in stacks.text
    assert "in wait_for" in stacks.text
    assert "Thread everbeat-watchdog:" in stacks.text


def test_a_signal_writes_stacks_while_c_code_holds_the_gil(server, worker):
    link = server.welcomed(ttl=0, pinging=False)
    link.work("hold_gil", input='{"seconds": 600}')
    link.answer(link.expect("heartbeat"))
    # The worker answers pings until the lock of the interpreter is held.
    deadline = time.monotonic() + 20
    while _answers(link):
        assert time.monotonic() < deadline
    worker.signal(signal.SIGUSR1)
    while "in hold_gil" not in (worker.dump_path.read_text() if worker.dump_path.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "most recent call first" in worker.dump_path.read_text()


def _answers(link) -> bool:
    link.ping()
    try:
        link.pongs.get(timeout=0.5)
    except queue.Empty:
        return False
    return True
