"""Cancel, fence and back-pressure."""

import json
import time

import pytest

from everbeat.worker import worker_pb2 as pb


@pytest.fixture
def link(server, worker):
    return server.welcomed()


def test_a_cancelled_function_stops_at_its_next_heartbeat(link):
    lease = link.work("until_cancelled")
    link.expect_started()
    link.cancel(lease)
    assert link.expect_end().WhichOneof("outcome") == "stopped"


@pytest.mark.parametrize("why", [pb.Cancel.WHY_JUDGED, pb.Cancel.WHY_UNSPECIFIED])
def test_whatever_the_reason(link, why):
    lease = link.work("until_cancelled")
    link.expect_started()
    link.cancel(lease, why)
    assert link.expect_end().WhichOneof("outcome") == "stopped"


def test_a_result_after_a_cancel_is_sent(link):
    lease = link.work("until_cancelled", input='{"beat": false, "result": 7}')
    link.expect_started()
    link.cancel(lease)
    assert link.expect_end().result == "7"


def test_an_async_function_is_cancelled_where_it_waits(link, tmp_path):
    note = tmp_path / "note"
    lease = link.work("async_until_cancelled", input=json.dumps({"path": str(note)}))
    link.expect_started()
    link.cancel(lease)
    assert link.expect_end().WhichOneof("outcome") == "stopped"
    assert note.read_text() == "cancelled=True"


def test_draining_is_not_cancelling(link):
    lease = link.work("until_draining")
    link.expect_started()
    link.cancel(lease, pb.Cancel.WHY_DRAINING)
    assert json.loads(link.expect_end().result) == {"cancelled": False}


def test_a_fenced_attempt_stops_and_is_not_spoken_of_again(link, tmp_path):
    note = tmp_path / "note"
    lease = link.work("async_until_cancelled", input=json.dumps({"path": str(note)}))
    link.expect_started()
    link.cancel(lease, pb.Cancel.WHY_FENCED)
    # Work that is taken up in the same loop afterwards ends after the fenced one.
    link.work("async_add", run_id="r2", token=b"2", input='{"a": 1, "b": 1}')
    ended = link.expect("ended", skip=("heartbeat",))
    assert ended.lease.run_id == "r2"
    assert note.read_text() == "cancelled=True"
    link.answer_end(ended.lease)
    assert link.silence_until_pong() == []


def test_a_heartbeat_answered_fenced_does_the_same(link):
    link.work("checkpoint")
    link.expect("heartbeat")
    link.answer(link.expect("heartbeat"), "FENCED")
    while link.pongs.get(timeout=10).running:
        pass
    assert link.silence_until_pong() == []


@pytest.mark.parametrize("task", ["flood", "async_flood"])
def test_a_generator_is_held_up_while_the_server_does_not_read(link, task, tmp_path):
    note = tmp_path / "taken"
    link.reading.clear()
    lease = link.work(task, input=json.dumps({"path": str(note), "kilobytes": 64}))
    taken = _settled(note)
    # What fits into the buffers of the worker, of HTTP/2 and of the server, and no more.
    assert 0 < taken < 400
    link.reading.set()
    for sequence in range(1, taken + 1):
        assert link.expect("output").sequence == sequence
    link.cancel(lease)
    assert link.expect_end(skip=("output",)).WhichOneof("outcome") == "stopped"
    assert note.read_text().startswith("cancelled after")


@pytest.mark.parametrize("task", ["flood", "async_flood"])
def test_a_generator_that_is_held_up_can_be_cancelled(link, task, tmp_path):
    note = tmp_path / "taken"
    link.reading.clear()
    lease = link.work(task, input=json.dumps({"path": str(note), "kilobytes": 64}))
    _settled(note)
    link.cancel(lease)
    _appears(note, "cancelled after")
    link.reading.set()
    assert link.expect_end(skip=("output",)).WhichOneof("outcome") == "stopped"


def _settled(note) -> int:
    """What a file says once it has said the same for a while."""
    last, since, limit = None, time.monotonic(), time.monotonic() + 20
    while time.monotonic() < limit:
        said = note.read_text() if note.exists() else ""
        if said != last:
            last, since = said, time.monotonic()
        elif said and time.monotonic() - since > 0.5:
            return int(said)
        time.sleep(0.02)
    raise AssertionError(f"it never settled: {last}")


def _appears(note, text) -> None:
    limit = time.monotonic() + 20
    while text not in note.read_text():
        assert time.monotonic() < limit, note.read_text()
        time.sleep(0.02)


def test_a_checkpoint_that_is_never_answered_does_not_outlast_the_judgement(link):
    lease = link.work("checkpoint")
    while not link.expect("heartbeat").HasField("checkpoint"):
        pass
    link.cancel(lease, pb.Cancel.WHY_JUDGED)
    assert link.expect_end().WhichOneof("outcome") == "stopped"
