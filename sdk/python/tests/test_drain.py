"""How a worker ends in order."""

import json
import signal

import pytest

from everbeat.worker import worker_pb2 as pb


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_says_that_it_goes_and_exits_with_0(server, worker, number):
    link = server.welcomed()
    link.silence_until_pong()
    worker.signal(number)
    link.expect("draining")
    assert link.next() is None
    link.end()
    assert worker.wait() == 0


def test_what_runs_is_finished_and_answered_first(server, worker):
    link = server.welcomed()
    link.work("until_draining")
    link.expect_started()
    worker.signal(signal.SIGTERM)
    link.expect("draining", skip=("heartbeat",))
    ended = link.expect("ended", skip=("heartbeat",))
    assert json.loads(ended.result) == {"cancelled": False}
    assert link.silence_until_pong() == []
    assert worker.process.poll() is None
    link.answer_end(ended.lease)
    assert link.next() is None
    link.end()
    assert worker.wait() == 0


def test_work_that_crosses_the_drain_is_given_back(server, worker, tmp_path):
    go = tmp_path / "go"
    link = server.welcomed()
    link.work("wait_for", input=json.dumps({"path": str(go)}))
    link.expect_started()
    worker.signal(signal.SIGTERM)
    link.expect("draining", skip=("heartbeat",))
    link.work("add", run_id="r2", token=b"2")
    ended = link.expect_end()
    assert (ended.lease.run_id, ended.WhichOneof("outcome")) == ("r2", "stopped")
    go.write_text("")
    assert link.expect_end().lease.run_id == "r1"
    link.end()
    assert worker.wait() == 0


def test_a_worker_drains_also_while_its_main_thread_hangs(server, worker):
    link = server.welcomed()
    lease = link.work("hang_loop")
    link.expect_started()
    worker.signal(signal.SIGTERM)
    link.expect("draining")
    link.cancel(lease, pb.Cancel.WHY_FENCED)
    link.end()
    assert worker.wait() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(server, worker, number, code):
    link = server.welcomed()
    link.work("hang_loop")
    link.expect_started()
    worker.signal(signal.SIGTERM)
    link.expect("draining")
    worker.signal(number)
    assert worker.wait() == code


def test_a_drain_of_the_server_cancels_what_outlasts_the_grace(server, worker):
    link = server.welcomed()
    link.work("until_cancelled")
    link.expect_started()
    link.send(drain=pb.Drain(grace_ms=200))
    assert link.expect_end(skip=("draining", "heartbeat")).WhichOneof("outcome") == "stopped"
    assert link.next() is None
    link.end()
    assert worker.wait() == 0


def test_a_drain_goes_on_over_a_broken_connection(server, worker, tmp_path):
    go = tmp_path / "go"
    link = server.welcomed()
    link.work("wait_for", input=json.dumps({"path": str(go)}))
    link.expect_started()
    worker.signal(signal.SIGTERM)
    link.expect("draining")
    link.cut()
    again = server.welcomed(epoch=2)
    again.expect("draining")
    go.write_text("x")
    again.expect_end()
    again.end()
    assert worker.wait() == 0


def test_a_worker_that_is_not_connected_yet_exits_at_once(server, worker):
    server.connection()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_server_that_never_closes_does_not_keep_it(server, worker):
    link = server.welcomed()
    link.silence_until_pong()
    worker.signal(signal.SIGTERM)
    link.expect("draining")
    assert worker.wait() == 0


def test_threads_of_the_app_do_not_keep_it(server, start, tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import everbeat, threading, time\n"
        "app = everbeat.App()\n"
        "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
    )
    worker = start("stuck:app", socket=server.path, cwd=tmp_path)
    link = server.welcomed()
    link.silence_until_pong()
    worker.signal(signal.SIGTERM)
    link.expect("draining")
    link.end()
    assert worker.wait() == 0
    assert "threads of the app still run" in worker.output
