"""Workers that lie, shout and break the rules: nobody else suffers."""

import contextlib
import sys
import threading
import time

import pytest
from trials import LONG, alive, spread, tell, trial_pool

import everbeat

pytestmark = pytest.mark.real

LOST = {"on_lost": "fail", "max_attempts": 1}
MEGABYTE = 1 << 20


@pytest.mark.parametrize("how", ["goes", "stays"])
def test_workers_that_leave_before_they_serve_are_started_less_and_less_often(trial, how):
    command = [sys.executable, "rogue.py"]
    since = time.monotonic()
    server = trial(trial_pool(name="leavers", command=command, size=1, env={"ROGUE_LEAVES": how}))
    most = 0

    def degraded():
        nonlocal most
        most = max(most, len([worker for worker in server.workers("leavers") if worker["state"] != "dead"]))
        pool = server.pool("leavers")
        return pool if pool["restarts"] >= 5 and pool["state"] == "degraded" else None

    pool = server.until(degraded, "a degraded pool", 60)
    # The pauses before the second to the fifth: 0.2, 0.4, 0.8 and 1.6 s.
    assert time.monotonic() - since > 2.5
    assert "leave by themselves before they serve" in pool["degraded_reason"]
    assert most <= 3, "twice the size of the pool, and one more"
    assert (how == "stays") or "exited with code 0" in pool["last_exit"]


@pytest.fixture
def server(trial):
    """A pool of rogues beside one that behaves, which must come to no harm."""
    rogues = trial_pool(name="rogues", command=[sys.executable, "rogue.py"], size=1)
    server = trial(rogues, trial_pool(size=1))
    (honest,) = server.ready(1)
    server.ready(1, "rogues")
    yield server
    # The other worker is still the same one, and at work.
    assert server.wait(server.submit("where")).unwrap()["pid"] == honest["pid"]
    assert server.pool()["restarts"] == 0


def rogue(server, how, policy=None, **given):
    return server.submit("rogue", {"how": how, **given}, policy=policy)


def works_again(server):
    assert server.wait(rogue(server, "honest")).unwrap() == "honest"


@pytest.mark.parametrize(
    ("how", "status"),
    [("garbage", "INVALID_ARGUMENT"), ("oversized", "RESOURCE_EXHAUSTED"), ("strange_lease", "INVALID_ARGUMENT")],
)
def test_what_cannot_be_read_ends_the_stream_and_its_worker_is_replaced(server, how, status):
    run = rogue(server, how, LOST)
    worker = server.worker_of(run)
    assert server.wait(run).state == "failed"
    assert server.outcomes(run) == ["lost"]
    server.expect_line(f"refused: {status}")
    server.until(lambda: not alive(worker["pid"]), "its end")
    works_again(server)


def test_a_message_that_says_nothing_is_refused_or_passed_over(server):
    run = rogue(server, "nothing", LOST)
    server.until(lambda: server.run(run)["state"] != "running" or "refused:" in server.log, "an answer", 10)
    # Where the message was refused, the run has failed already.
    with contextlib.suppress(everbeat.Conflict):
        server.client().runs.cancel(run)
    assert server.wait(run).is_finished
    works_again(server)


@pytest.mark.parametrize("how", ["not_json", "no_outcome"])
def test_a_result_that_is_none_fails_the_attempt(server, how):
    ended = server.wait(rogue(server, how, LOST))
    assert ended.state == "failed"
    works_again(server)


def test_leases_of_others_change_nothing(server):
    run = server.wait(rogue(server, "other_leases"))
    assert run.unwrap() == ["VERDICT_FENCED"] * 3
    assert (run.checkpoint, server.outcomes(run.id)) == (None, ["succeeded"])
    works_again(server)


def test_the_first_result_counts(server):
    run = server.wait(rogue(server, "twice"))
    works_again(server)
    assert server.wait(run.id).unwrap() == "first"
    assert server.outcomes(run.id) == ["succeeded"]


@pytest.mark.parametrize(("pause", "grace"), [(0.0, "10s"), (0.4, "200ms"), (2.5, "200ms")])
def test_a_result_after_a_cancel_does_not_undo_it(server, pause, grace):
    run = rogue(server, "after_cancel", {"cancel_grace": grace}, pause=pause)
    server.began(run)
    worker = server.worker_of(run)
    server.client().runs.cancel(run)
    ended = server.wait(run)
    if pause < 2:
        server.expect_line("heard after the cancel")
    else:
        # It did not end the attempt in time, and was ended.
        server.until(lambda: not alive(worker["pid"]), "its end")
    works_again(server)
    # A result within the grace counts: a cancel is a request. Once the run is cancelled nothing counts.
    again = server.run(run)
    expected = ("cancelled", None) if pause else ("succeeded", 9)
    assert (again["state"], again["checkpoint"]) == expected
    assert ended.state == again["state"]
    assert len(server.outcomes(run)) == 1


def test_strangers_are_told_why_they_are_not_let_in(server):
    answers = server.wait(rogue(server, "strangers"), 60).unwrap()
    assert answers == {
        "wrong secret": "UNAUTHENTICATED",
        "no secret": "UNAUTHENTICATED",
        "again": "FAILED_PRECONDITION",
        "no such pool": "FAILED_PRECONDITION",
        "of no pool": "INVALID_ARGUMENT",
        "no slots": "INVALID_ARGUMENT",
        "no hello": "INVALID_ARGUMENT",
        "garbage": "INVALID_ARGUMENT",
        "large": "RESOURCE_EXHAUSTED",
        "many tasks": "INVALID_ARGUMENT",
        "odd task": "INVALID_ARGUMENT",
        "other key": "FAILED_PRECONDITION",
        "other method": "UNIMPLEMENTED",
    }
    works_again(server)
    # Also while connections are open that say nothing, a new worker is let in.
    server.cli("pool", "scale", "trial", "2")
    server.ready(2)
    server.cli("pool", "scale", "trial", "1")
    server.until(lambda: len(server.workers("trial")) == 1, "one worker")


@pytest.mark.parametrize("kind", ["output", "note", "log"])
def test_a_flood_of_messages_takes_no_memory(server, kind):
    with bounded(server):
        run = rogue(server, "flood", megabytes=100, kind=kind)
        assert server.wait(run, 60).unwrap() == "flooded"
    works_again(server)


def test_a_worker_that_shouts_and_does_not_listen_is_ended(server):
    with bounded(server):
        run = rogue(server, "deaf", {**LOST, "deadline": "8s", "cancel_grace": "200ms"})
        worker = server.worker_of(run)
        assert server.wait(run).state == "failed"
        server.until(lambda: not alive(worker["pid"]), "its end")
    works_again(server)


def test_pongs_and_stacks_that_nobody_asked_for_are_passed_over(server):
    with bounded(server):
        assert server.wait(rogue(server, "unknown_pongs")).unwrap() == "ponged"
    assert server.workers("rogues")[0]["class"] == "alive"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_lines_takes_no_memory(trial, stream):
    server = trial(trial_pool(size=1), trial_pool(name="loud", queues=["loud"], size=1))
    server.ready(1, "loud")
    server.ready(1)
    with bounded(server):
        run = server.submit("chatter", {"megabytes": 100, "stream": stream}, queue="loud")
        # Others are served meanwhile.
        server.worker_of(run)
        at = time.monotonic()
        assert server.wait(server.submit("reply", {"value": 1})).unwrap() == 1
        assert time.monotonic() - at < 5
        assert server.wait(run, 120).unwrap() == "said"
    assert server.pool("loud")["restarts"] == 0
    server._lines.clear()


def test_a_line_without_an_end_takes_no_memory(trial):
    server = trial(trial_pool(size=1))
    server.ready(1)
    with bounded(server):
        assert server.wait(server.submit("endless_line", {"megabytes": 100})).unwrap() == "said"
    assert "cut=true" in server.log


def test_a_stream_of_much_takes_no_memory(trial):
    server = trial(trial_pool(size=1))
    server.ready(1)
    with bounded(server):
        assert server.wait(server.submit("stream", {"items": 100, "size": MEGABYTE - 2}), 60).succeeded


def test_a_hundred_megabytes_of_items_and_of_lines_at_once_take_no_memory_and_hold_nobody_up(trial):
    server = trial(trial_pool(size=1), trial_pool(name="loud", queues=["loud"], size=2))
    server.ready(2, "loud")
    server.ready(1)
    items, size, begun = 200, MEGABYTE // 2, time.monotonic()
    with bounded(server):
        streams = server.submit("items", {"to": items, "size": size}, queue="loud")
        shouts = server.submit("chatter", {"megabytes": 100, "stream": "stdout", "line": 16_000}, queue="loud")
        answered = []
        while not all(server.run(run)["state"] == "succeeded" for run in (streams, shouts)):
            at = time.monotonic()
            assert server.wait(server.submit("reply", {"value": 1})).unwrap() == 1
            answered.append(time.monotonic() - at)
            # The server prints what it hears, and the trial keeps what it prints.
            server._lines.clear()
            assert at - begun < 60, "it takes too long"
    assert max(answered) < 5
    assert [server.outcomes(run) for run in (streams, shouts)] == [["succeeded"]] * 2
    assert server.pool("loud")["restarts"] == server.pool()["restarts"] == 0
    # Of the items the newest are kept.
    last = server.ask(f"runs/{streams}/output?limit=1")["last"]
    assert last == items
    newest = server.ask(f"runs/{streams}/output?after={last - 1}")["items"]
    assert [item["item"] for item in newest] == [[items - 1, "i" * size]]
    if LONG:
        tell(replies=spread(answered), seconds=round(time.monotonic() - begun, 1))


class bounded:  # noqa: N801 - used as a statement
    """Sees to it that the server does not take much more memory meanwhile."""

    def __init__(self, server, most=80 * MEGABYTE) -> None:
        self.server, self.most = server, most

    def __enter__(self) -> None:
        self.before, self.peak, self.over = self.server.memory(), 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self) -> None:
        while not self.over.wait(0.02):
            self.peak = max(self.peak, self.server.memory())

    def __exit__(self, kind, *_) -> None:
        self.over.set()
        self.thread.join()
        if LONG:
            tell(more_mib=(self.peak - self.before) // MEGABYTE, before_mib=self.before // MEGABYTE)
        if kind is None:
            assert self.peak - self.before < self.most, f"{(self.peak - self.before) // MEGABYTE} MiB more"
