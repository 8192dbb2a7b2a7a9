"""Connections that break, are refused, or carry nonsense."""

import json

import grpc
import pytest

from everbeat.worker import items
from everbeat.worker import worker_pb2 as pb


@pytest.mark.parametrize("how", ["cut", "end", "garbage"])
def test_work_goes_on_while_the_connection_is_away(server, worker, how, tmp_path):
    go = tmp_path / "go"
    link = server.welcomed()
    lease = link.work("wait_for", input=json.dumps({"path": str(go)}))
    link.expect_started()
    if how == "garbage":
        link.send_bytes(b"\xff\xff\xff")
    else:
        getattr(link, how)()
    again = server.welcomed(epoch=2)
    assert (again.hello.worker_id, again.hello.key, list(again.hello.leases)) == ("w1", b"key", [lease])
    go.write_text("done")
    assert json.loads(again.expect_end().result) == "done"


def test_an_ending_that_was_not_answered_is_said_again_until_it_is(server, worker):
    link = server.welcomed()
    lease = link.work("add", input='{"a": 1}')
    assert link.expect("ended").result == "11"
    link.cut()
    second = server.welcomed(epoch=2)
    assert list(second.hello.leases) == [lease]
    assert second.expect("ended").result == "11"
    second.cut()
    third = server.welcomed(epoch=3)
    third.expect_end()
    third.cut()
    fourth = server.welcomed(epoch=4)
    assert list(fourth.hello.leases) == []
    assert fourth.silence_until_pong() == []


def test_an_attempt_that_ends_while_the_connection_is_away_says_so_once(server, worker, tmp_path):
    go = tmp_path / "go"
    link = server.welcomed()
    link.work("wait_for", input=json.dumps({"path": str(go)}))
    link.expect_started()
    link.cut()
    again = server.connection()
    go.write_text("done")
    # The function ends before the welcome; the worker must be silent until then.
    again.welcome(epoch=2)
    again.keep_pinging()
    assert json.loads(again.expect_end().result) == "done"
    assert again.silence_until_pong() == []


def test_a_checkpoint_that_awaits_its_answer_is_said_again(server, worker):
    link = server.welcomed()
    link.work("checkpoint")
    link.expect("heartbeat")
    first = link.expect("heartbeat")
    link.cut()
    again = server.welcomed(epoch=2)
    second = again.expect("heartbeat")
    assert second == first
    again.answer(second)
    assert json.loads(again.expect_end().result) == "stored"


@pytest.mark.parametrize("task", ["count", "async_count"])
def test_items_that_were_not_answered_are_said_again(server, worker, task):
    link = server.welcomed(answers=True)
    lease = link.work(task, input='{"to": 9000}')
    for _ in range(3000):
        link.expect("output")
    link.answer_output(lease, 2000)
    # Of a lease that is another's, nothing is answered.
    link.answer_output(pb.Lease(run_id="r1", attempt=1, token=b"x" * 16), 9000)
    assert link.silence_until_pong()
    link.cut()
    again = server.welcomed(epoch=2, answers=True)
    for number in range(2001, 9001):
        assert again.expect("output").sequence == number
        again.answer_output(lease, number)
    assert again.expect("ended").lease == lease
    again.cut()
    # Only the ending is left to be answered.
    third = server.welcomed(epoch=3, answers=True)
    third.expect_end(skip=())
    assert third.silence_until_pong() == []


@pytest.mark.parametrize("task", ["flood", "async_flood"])
@pytest.mark.parametrize("why", [pb.Cancel.WHY_CANCELLED, pb.Cancel.WHY_FENCED])
def test_a_generator_whose_items_are_never_answered_waits_and_can_be_cancelled(server, worker, task, why, tmp_path):
    taken = tmp_path / "taken"
    link = server.welcomed(answers=True)
    lease = link.work(task, input=json.dumps({"path": str(taken), "kilobytes": 0}))
    for _ in range(items.MOST_KEPT):
        link.expect("output")
    assert link.silence_until_pong() == []
    link.cancel(lease, why)
    if why == pb.Cancel.WHY_CANCELLED:
        assert link.expect_end(skip=()).HasField("stopped")
    while taken.read_text() != f"cancelled after {items.MOST_KEPT}":
        link.silence_until_pong()


def test_a_lease_that_the_server_no_longer_awaits_is_dropped(server, worker):
    link = server.welcomed()
    lease = link.work("until_cancelled")
    link.expect_started()
    link.cut()
    again = server.welcomed(epoch=2)
    assert list(again.hello.leases) == [lease]
    fenced = pb.HeartbeatAnswer.VERDICT_FENCED
    again.send(heartbeat_answer=pb.HeartbeatAnswer(lease=lease, verdict=fenced))
    while again.pongs.get(timeout=10).running:
        pass
    assert not [each for each in again.silence_until_pong() if isinstance(each, pb.Ended)]


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED", "FAILED_PRECONDITION"])
def test_a_refused_worker_says_why_and_exits(server, start, code):
    server.refusal = (grpc.StatusCode[code], "the epoch is over")
    worker = start(socket=server.path)
    assert worker.wait() == 1
    assert "the epoch is over" in worker.output
    assert "s3cret" not in worker.output


def test_a_server_that_is_not_ready_is_asked_again(server, start):
    server.refusal = (grpc.StatusCode.UNAVAILABLE, "starting")
    worker = start(socket=server.path)
    worker.expect_line("starting")
    server.refusal = None
    link = server.welcomed()
    link.work("add", input='{"a": 1}')
    link.expect_end()


def test_a_server_that_says_something_before_the_welcome_is_left(server, worker):
    link = server.connection()
    link.work("add", input='{"a": 1}')
    again = server.welcomed()
    assert list(again.hello.leases) == []


def test_messages_that_mean_nothing_are_passed_over(server, worker):
    link = server.welcomed()
    link.send_bytes(b"")
    link.send_bytes(b"\x9a\x06\x00")  # A field that a later version may have.
    link.answer_end(pb.Lease(run_id="r9", attempt=1, token=b"?"))
    link.cancel(pb.Lease(run_id="r9", attempt=1, token=b"?"))
    link.work("add", input='{"a": 1}')
    link.expect_end()


def test_streamed_items_wait_for_the_next_connection(server, worker, tmp_path):
    note = tmp_path / "taken"
    link = server.welcomed()
    link.work("flood", input=json.dumps({"path": str(note)}))
    link.expect("output")
    link.cut()
    again = server.welcomed(epoch=2)
    first = again.expect("output").sequence
    for following in range(1, 100):
        assert again.expect("output").sequence == first + following
