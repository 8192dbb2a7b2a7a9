"""Runs that belong together are performed by the same worker."""

import sys
import urllib.error
from collections import Counter
from pathlib import Path

import pytest
from trials import alive, kill, trial_pool

pytestmark = pytest.mark.real


def session_pool(**settings):
    return trial_pool(command=[sys.executable, "-m", "everbeat.worker", "session_tasks:app"], **settings)


def strict(key, **more):
    return {"key": key, "affinity": "strict", **more}


@pytest.fixture
def server(trial):
    server = trial(session_pool(size=3))
    server.ready(3)
    return server


def tell(server, session, gate=None):
    return server.submit("told", {"gate": gate and str(gate)}, session=session)


def told(server, session):
    return server.wait(tell(server, session)).unwrap()


def sessions(server, name="trial"):
    return server.ask(f"pools/{name}/sessions")["items"]


def waits(server, run):
    """Returns when the run was left to the worker of its session."""

    def left():
        attempts = server.attempts(run)
        return attempts and (attempts[-1]["error"] or {}).get("reason") == "session_busy"

    server.until(left, f"run {run} to wait for its session")
    server.until(lambda: server.run(run)["state"] == "ready", f"run {run} to be ready")


def test_runs_of_a_key_are_performed_by_one_worker(server):
    for session in ("hinted", strict("strict")):
        first = told(server, session)
        assert first["is_new"] is True
        for _ in range(10):
            assert told(server, session) == {**first, "is_new": False}
    assert told(server, "other")["id"] != first["id"]
    assert "key" not in server.wait(server.submit("told")).unwrap()


def test_sessions_are_spread_over_the_workers(server):
    pids = Counter(told(server, f"user-{number}")["pid"] for number in range(9))
    assert sorted(pids.values()) == [3, 3, 3]
    assert [worker["sessions"] for worker in server.ready(3)] == [3, 3, 3]


def test_a_hint_goes_elsewhere_rather_than_waiting_and_the_session_moves(server):
    gate = server.scratch / "gate"
    first = told(server, "user")
    held = tell(server, "user", gate)
    server.began(held)
    second = told(server, "user")
    assert second["is_new"] is True
    assert second["pid"] != first["pid"]
    assert told(server, "user") == {**second, "is_new": False}
    gate.touch()
    assert server.wait(held).unwrap() == {**first, "is_new": False}


def test_a_strict_run_waits_for_its_worker_and_nothing_else_waits_with_it(server):
    gate = server.scratch / "gate"
    held = tell(server, strict("user"), gate)
    server.began(held)
    waiting = [tell(server, strict("user")) for _ in range(20)]
    waits(server, waiting[-1])
    others = [tell(server, strict(f"other-{number}")) for number in range(20)]
    plain = server.submit_many("told", [None] * 20)
    for run in [*others, *plain]:
        server.wait(run).unwrap()
    assert {server.run(run)["state"] for run in waiting} == {"ready"}
    why = server.client().runs.explain(waiting[0])
    assert 'waits for its session "user"' in why["summary"]
    before = server.cpu()
    gate.touch()
    done = server.wait(held).unwrap()
    for run in waiting:
        assert server.wait(run).unwrap() == {**done, "is_new": False}
        assert server.outcomes(run) == ["released", "succeeded"], "it is left there once"
        assert server.run(run)["tries"] == 1
    assert server.cpu() - before < 5


def test_many_strict_runs_of_many_sessions_each_stay_with_their_worker(server):
    path = server.scratch / "notes"
    keys = [f"user-{number}" for number in range(6)]
    runs = [
        (key, server.submit("noted", {"path": f"{path}-{key}", "seconds": 0.005}, session=strict(key)))
        for _ in range(20)
        for key in keys
    ]
    pids = {}
    for key, run in runs:
        pids.setdefault(key, set()).add(server.wait(run).unwrap())
    assert all(len(each) == 1 for each in pids.values()), pids
    for key in keys:
        lines = [line.split()[0] for line in Path(f"{path}-{key}").read_text().splitlines()]
        assert lines == ["begin", "end"] * 20
    assert max(len(server.attempts(run)) for _, run in runs) <= 3


def test_a_strict_run_begins_anew_elsewhere_when_its_worker_dies(server):
    gate = server.scratch / "gate"
    held = tell(server, strict("user"), gate)
    worker = server.worker_of(held)
    server.began(held)
    waiting = tell(server, strict("user"))
    waits(server, waiting)
    kill(worker["pid"])
    gate.touch()
    ended = [server.wait(run).unwrap() for run in (held, waiting)]
    assert worker["pid"] not in {each["pid"] for each in ended}
    assert len({(each["pid"], each["id"]) for each in ended}) == 1, "both are of one new session"
    assert sorted(each["is_new"] for each in ended) == [False, True]
    assert server.outcomes(held)[0] == "lost"


def test_a_session_is_over_when_it_was_not_used_for_its_time(trial):
    server = trial(session_pool(size=1, session_ttl="1s"))
    server.ready(1)
    first = told(server, strict("user"))
    kept = told(server, strict("kept", ttl="1h"))
    server.until(lambda: [each["key"] for each in sessions(server)] == ["kept"], "the end of the session")
    second = told(server, strict("user"))
    assert second["is_new"] is True
    assert second["id"] != first["id"]
    assert told(server, strict("kept", ttl="1h")) == {**kept, "is_new": False}


def test_a_waiting_run_begins_elsewhere_when_the_time_of_its_session_is_over(trial):
    server = trial(session_pool(size=2))
    server.ready(2)
    first = told(server, strict("short", ttl="1s"))
    # The worker of the session is held by others; one of the two sessions comes to lie there.
    gate = server.scratch / "gate"
    holders = []
    while not any(server.worker_of(run)["pid"] == first["pid"] for run in holders):
        holders.append(server.submit("told", {"gate": str(gate)}))
        server.began(holders[-1])
    for run in holders:
        if server.worker_of(run)["pid"] != first["pid"]:
            server.client().runs.cancel(run)
            server.wait(run)
    waiting = tell(server, strict("short", ttl="1s"))
    moved = server.wait(waiting).unwrap()
    assert moved["is_new"] is True
    assert moved["pid"] != first["pid"]
    gate.touch()


def test_sessions_end_with_the_workers_that_a_restart_replaces(server):
    first = told(server, strict("user"))
    server.ask("pools/trial/restart", {})
    server.until(lambda: not alive(first["pid"]), "the end of the worker")
    second = told(server, strict("user"))
    assert second["is_new"] is True
    assert second["pid"] != first["pid"]


def test_a_session_is_seen_and_ended(server):
    first = told(server, strict("user/é 1"))
    told(server, "hinted")
    seen = {each["key"]: each for each in sessions(server)}
    assert sorted(seen) == ["hinted", "user/é 1"]
    one = seen["user/é 1"]
    assert (one["affinity"], one["id"], one["ending"]) == ("strict", first["id"], False)
    assert one["expires_at"] > one["last_used_at"] >= one["begun_at"]
    assert server.worker(one["worker_id"])["pid"] == first["pid"]
    assert server.pool()["sessions"] == 2
    listed = server.cli("pool", "sessions", "trial")["items"]
    assert [each["key"] for each in listed] == ["hinted", "user/é 1"]
    assert "user/é 1" in server.cli_raw("pool", "sessions", "trial").stdout
    ended = server.cli("pool", "end-session", "trial", "user/é 1")
    assert ended["ending"] is True
    assert told(server, strict("user/é 1"))["is_new"] is True
    server.ask("pools/trial/sessions/hinted", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.ask("pools/trial/sessions/hinted", method="DELETE")
    assert refused.value.code == 404
    page = server.ask("pools/trial/sessions?limit=1")
    assert page["next_cursor"] is None


def test_a_session_in_use_ends_when_its_run_has(server):
    gate = server.scratch / "gate"
    held = tell(server, strict("user"), gate)
    server.began(held)
    assert sessions(server)[0]["expires_at"] is None
    server.ask("pools/trial/sessions/user", method="DELETE")
    waiting = tell(server, strict("user"))
    server.until(lambda: server.attempts(waiting), "an attempt that is given back")
    gate.touch()
    first, second = server.wait(held).unwrap(), server.wait(waiting).unwrap()
    assert second["is_new"] is True
    assert second["id"] != first["id"]


def test_the_session_that_was_not_used_for_longest_goes_when_there_are_too_many(trial):
    server = trial(session_pool(size=1, max_sessions=3))
    server.ready(1)
    for number in range(8):
        told(server, f"user-{number}")
    assert [each["key"] for each in sessions(server)] == ["user-5", "user-6", "user-7"]
    assert told(server, "user-6")["is_new"] is False
    assert told(server, "user-0")["is_new"] is True
    warned = [line for line in server.log.splitlines() if "as many sessions as it may" in line]
    assert len(warned) == 1


def test_a_worker_that_speaks_lines_is_told_of_its_session(trial):
    program = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    work = json.loads(line)\n"
        "    print(json.dumps({'run_id': work['run_id'], 'result': [os.getpid(), work['session']]}), flush=True)\n"
    )
    pool = trial_pool(command=[sys.executable, "-c", program], protocol="lines", tasks=["lines"])
    server = trial(pool)
    server.ready(2)
    first = server.wait(server.submit("lines", session=strict("user"))).unwrap()
    second = server.wait(server.submit("lines", session=strict("user"))).unwrap()
    assert (first[1]["key"], first[1]["is_new"]) == ("user", True)
    assert second == [first[0], {**first[1], "is_new": False}]
    assert server.wait(server.submit("lines")).unwrap()[1] is None


@pytest.mark.parametrize(
    ("session", "field"),
    [
        ({"key": ""}, "session.key"),
        ({"key": "x" * 201}, "session.key"),
        ({"key": "a\nb"}, "session.key"),
        ({}, "session.key"),
        ({"key": "a", "affinity": "sticky"}, "session.affinity"),
        ({"key": "a", "ttl": "0s"}, "session.ttl"),
        ({"key": "a", "ttl": "8d"}, "session.ttl"),
        ({"key": "a", "tll": "8d"}, "session.tll"),
    ],
)
def test_a_bad_session_is_refused_by_the_name_of_its_field(server, session, field):
    with pytest.raises(Exception, match=field.replace(".", r"\.")):
        server.submit("told", session=session)
