"""Work of each kind of function."""

import json

import pytest

from everbeat.worker import worker_pb2 as pb


@pytest.fixture
def link(server, worker):
    return server.welcomed(limit=50_000)


def perform(link, task, value=None, **fields):
    link.work(task, input=json.dumps(value), **fields)
    return link.expect_end()


def result(link, task, value=None, **fields):
    ended = perform(link, task, value, **fields)
    assert ended.WhichOneof("outcome") == "result", ended
    return json.loads(ended.result)


def failure(link, task, value=None):
    ended = perform(link, task, value)
    assert ended.WhichOneof("outcome") == "failure", ended
    return ended.failure


def test_a_hello_says_who_the_worker_is_and_what_it_can_do(server, worker):
    hello = server.connection().hello
    assert (hello.pool, hello.secret, hello.slots) == ("testers", "s3cret", 4)
    assert hello.sdk.startswith("everbeat-python ")
    assert "add" in hello.tasks
    assert "async_add" in hello.tasks
    assert "order.total" in hello.tasks
    assert (hello.worker_id, hello.key, list(hello.leases)) == ("", b"", [])
    (graph,) = map(json.loads, hello.graphs)
    assert graph == {
        "name": "order",
        "version": "2",
        "nodes": [
            {"name": "price", "kind": "input"},
            {"name": "count", "kind": "input"},
            {
                "name": "total",
                "kind": "compute",
                "gate": ["price", "count"],
                "task": "order.total",
                "options": {"max_attempts": 5},
            },
        ],
    }


def test_an_object_becomes_named_arguments(link):
    assert result(link, "add", {"a": 1, "b": 2}) == 3


def test_other_input_is_one_argument_and_null_is_none(link):
    assert result(link, "whatever", [1]) == {"args": [[1]], "named": {}}
    assert result(link, "whatever", None, run_id="r2", token=b"2") == {"args": [], "named": {}}
    assert result(link, "whatever", {"x": None}, run_id="r3", token=b"3") == {"args": [], "named": {"x": None}}


@pytest.mark.parametrize(("task", "expected"), [("async_add", 3), ("order.total", 0)])
def test_functions_of_other_kinds_are_called_likewise(link, task, expected):
    value = {"a": 1, "b": 2} if task == "async_add" else {"price": 2, "count": 0, "execution_id": "e", "other": 1}
    assert result(link, task, value) == expected


def test_an_object_that_can_be_called_is_a_task(link):
    assert result(link, "callable_object", {"a": 1}) == 2
    assert result(link, "partial", {"a": 1}, run_id="r2", token=b"2") == 101


def test_a_context_knows_its_attempt(link):
    facts = result(
        link,
        "facts",
        attempt=3,
        args='{"size": 1}',
        execution_id="e1",
        node="n1",
        session="s1",
        session_id="i1",
        session_new=True,
        checkpoint='{"page": 7}',
        deadline_ms=60_000,
    )
    thread = facts.pop("thread")
    assert thread.startswith("everbeat-task-")
    assert facts == {
        "run_id": "r1",
        "attempt": 3,
        "fence": 3,
        "task": "facts",
        "args": {"size": 1},
        "execution_id": "e1",
        "node": "n1",
        "session": ["s1", "i1", True],
        "resume": {"page": 7},
        "has_time": True,
    }


def test_without_a_checkpoint_resume_gives_the_default(link):
    facts = result(link, "facts")
    assert facts["resume"] == {"page": 0}
    assert (facts["args"], facts["execution_id"], facts["node"], facts["session"]) == (None, None, None, None)


@pytest.mark.parametrize(("task", "returned"), [("count", {"counted": 200}), ("async_count", None)])
def test_a_generator_streams(link, task, returned):
    link.work(task, input='{"to": 200}')
    for number in range(200):
        output = link.expect("output")
        assert (output.sequence, json.loads(output.item)) == (number + 1, number)
    assert json.loads(link.expect_end().result) == returned


def test_an_exception_is_a_failure_with_its_traceback(link):
    failed = failure(link, "fails", {"message": "wrong £"})
    assert failed.message == "ValueError: wrong £"
    assert not failed.permanent
    assert "raise ValueError(message)" in failed.detail
    assert "everbeat/worker" not in failed.detail


def test_a_long_traceback_is_cut(link):
    failed = failure(link, "fails", {"message": "x" * 40_000})
    assert len(failed.detail) <= 16 * 1024
    assert len(failed.message) <= 4 * 1024


def test_a_permanent_failure_says_so(link):
    failed = failure(link, "fail_for_good")
    assert (failed.message, failed.permanent) == ("Permanent: no such customer", True)


def test_exceptions_of_async_functions_and_exits_are_failures(link):
    link.work("async_fail")
    assert link.expect_end().failure.message == "KeyError: 'x'"
    link.work("leave", run_id="r2", token=b"2")
    assert link.expect_end().failure.message == "SystemExit: 3"


@pytest.mark.parametrize(
    ("task", "value", "says"),
    [
        ("give", {"what": "set"}, "of type set"),
        ("give", {"what": "nan"}, "not JSON compliant"),
        ("give", {"what": "large"}, "the server takes 50000"),
        ("no_such_task", None, "no task 'no_such_task'"),
    ],
)
def test_what_cannot_be_sent_or_performed_fails_for_good(link, task, value, says):
    failed = failure(link, task, value)
    assert says in failed.message
    assert failed.permanent


def test_a_streamed_item_that_is_no_json_fails_for_good(link):
    link.work("yield_wrong")
    assert link.expect("output").item == "1"
    failed = link.expect_end().failure
    assert "a streamed item is not JSON" in failed.message
    assert failed.permanent


def test_an_input_that_does_not_fit_is_a_failure(link):
    assert "unexpected keyword argument 'c'" in failure(link, "add", {"a": 1, "c": 2}).message


def test_an_input_that_is_no_json_fails_for_good(link):
    link.work("add", input="{")
    assert link.expect_end().failure.permanent


def test_work_that_comes_twice_is_performed_once(link):
    for _ in range(2):
        link.work("add", input='{"a": 1}')
    link.expect_end()
    link.work("add", input='{"a": 1}')
    assert link.silence_until_pong() == []


def test_heartbeats_are_coalesced_and_the_last_is_sent_before_the_end(link):
    link.work("beats", input='{"count": 5000}')
    said = []
    while True:
        message = link.next()
        if isinstance(message, pb.Ended):
            break
        said.append(message)
    assert said[-1].done == 4999
    assert len(said) < 100
    assert all(beat.sequence == 0 for beat in said)


def test_a_checkpoint_is_waited_for(link):
    link.work("checkpoint")
    assert link.expect("heartbeat").note == "before"
    heartbeat = link.expect("heartbeat")
    assert (heartbeat.sequence, heartbeat.done, heartbeat.total) == (1, 5, 10)
    assert json.loads(heartbeat.checkpoint) == {"page": "half"}
    assert link.silence_until_pong() == []
    link.answer(heartbeat)
    link.answer(heartbeat)
    assert json.loads(link.expect_end().result) == "stored"


def test_an_async_function_awaits_its_checkpoint(link):
    link.work("async_checkpoint")
    link.answer(link.expect("heartbeat"))
    assert json.loads(link.expect_end().result) == "stored"


def test_a_refused_checkpoint_is_raised(link):
    link.work("checkpoint")
    link.expect("heartbeat")
    link.answer(link.expect("heartbeat"), "REFUSED", "it is too deep")
    assert json.loads(link.expect_end().result) == "refused: it is too deep"


def test_a_checkpoint_beyond_the_limit_is_refused_without_being_sent(link):
    link.work("checkpoint", input=json.dumps({"value": "x" * 49_999}))
    assert link.expect("heartbeat").note == "before"
    assert "the server takes 50000" in link.expect_end().result


@pytest.mark.parametrize("verdict", ["CANCELLED", "DRAINING"])
def test_a_checkpoint_that_was_not_stored_stops_the_attempt(link, verdict):
    link.work("checkpoint")
    link.expect("heartbeat")
    link.answer(link.expect("heartbeat"), verdict)
    assert link.expect_end().WhichOneof("outcome") == "stopped"


def test_an_answer_with_a_wrong_token_changes_nothing(link):
    link.work("checkpoint")
    link.expect("heartbeat")
    heartbeat = link.expect("heartbeat")
    wrong = pb.Heartbeat()
    wrong.CopyFrom(heartbeat)
    wrong.lease.token = b"w" * 16
    link.answer(wrong)
    link.answer(wrong, "FENCED")
    link.cancel(wrong.lease)
    assert link.silence_until_pong() == []
    link.answer(heartbeat)
    assert json.loads(link.expect_end().result) == "stored"


def test_log_records_of_a_task_go_to_the_server(link, worker):
    link.work("log")
    first, second, third, long = (link.expect("log") for _ in range(4))
    assert (first.level, first.text, first.lease.run_id) == ("info", "hello from log", "r1")
    assert (second.level, second.text) == ("warning", "from elsewhere")
    assert third.level == "error"
    assert "ValueError: inside" in third.text
    assert len(long.text) == 16 * 1024
    link.expect_end()
    worker.expect_line("printed")
    assert "hello from" not in worker.output


def test_log_records_that_find_no_room_are_dropped_and_counted(server, start):
    start("chatty:app", socket=server.path)
    link = server.welcomed()
    link.reading.clear()
    link.work("chat", input='{"lines": 5000}')
    link.expect("log")
    link.reading.set()
    lines = []
    while not isinstance(message := link.next(), pb.Ended):
        lines.append(message)
    dropped = [int(line.text.split()[0]) for line in lines if "were dropped" in line.text]
    kept = [line for line in lines if "were dropped" not in line.text]
    assert dropped
    assert len(kept) + sum(dropped) == 4999
