"""Flows and schedules that workers declare: told once, run by the clock, and never in the way of what people change."""

from datetime import datetime

import pytest
from trials import trial_pool

import everbeat

pytestmark = pytest.mark.real

# What all apps of these trials begin with.
BEGIN = """
import everbeat
app = everbeat.App()
"""

COUNTING = """
@app.flow("counting", every="1s", configuration={"step": 2})
def counting(ctx, step):
    at = ctx.resume(ctx.cursor or 0) + step
    ctx.heartbeat(checkpoint=at)
    return {"at": at, "due_at": ctx.due_at.isoformat(), "cause": ctx.cause, "from": ctx.from_, "to": ctx.to}
"""


@pytest.fixture
def start(trial, tmp_path):
    """Starts a server with a pool of four workers that perform the given code."""

    def start(code):
        (tmp_path / "declared.py").write_text(BEGIN + code)
        command = [*trial_pool()["command"][:-1], "declared:app"]
        server = trial(trial_pool(size=4, command=command, cwd=str(tmp_path)))
        server.ready(4)
        return server

    return start


@pytest.fixture
def rewrite(tmp_path):
    """Has the workers of a server start anew with other code."""

    def rewrite(server, code, mark):
        """Answers when the flow of that name, which comes last in the code, was told by one of the new workers."""
        (tmp_path / "declared.py").write_text(f"{BEGIN}{code}\napp.flow({mark!r})(lambda ctx: None)\n")
        server.ask("pools/trial/restart", {})
        server.until(lambda: named(server, mark), f"flow {mark}")

    return rewrite


def named(server, name):
    try:
        return server.client().flows.get(name)
    except everbeat.NotFound:
        return None


def successes(server, name):
    """Oldest first, once there are three."""

    def three():
        found = [run for run in server.client().flows.runs(name) if run.status == "success"]
        return found if len(found) >= 3 else None

    return server.until(three, f"three runs of {name}")[::-1]


def test_a_flow_in_code_runs_by_its_schedule_and_goes_on_where_the_last_run_left_off(start):
    server = start(COUNTING)
    runs = successes(server, "counting")
    results = [server.client().runs.get(run.id).result for run in runs]
    assert [result["at"] for result in results] == [2 * (place + 1) for place in range(len(results))]
    for run, result in zip(runs, results):
        assert datetime.fromisoformat(result["due_at"]) == datetime.fromisoformat(run.due_at.replace("Z", "+00:00"))
        assert (result["cause"], result["from"], result["to"]) == ("clock", None, None)
    (listed,) = server.cli("ls", "flows")["items"]
    assert (listed["name"], listed["declared"], listed["configuration"]) == (
        "counting",
        "same",
        {"step": 2, "task": "counting"},
    )
    assert "counting" in server.cli_raw("ls", "flows").stdout


def test_a_part_of_the_source_is_asked_for_and_the_cursor_stays(start):
    server = start(COUNTING.replace('every="1s", ', ""))
    flows, runs = server.client().flows, server.client().runs
    server.until(lambda: named(server, "counting"), "the flow")
    assert runs.wait(flows.trigger("counting").id).unwrap()["at"] == 2
    asked = runs.wait(flows.trigger("counting", from_="2026-01-01", to="2026-02-01").id).unwrap()
    assert (asked["from"], asked["to"], asked["cause"]) == ("2026-01-01", "2026-02-01", "asked")
    runs.wait(flows.trigger("counting", cursor=100).id)
    server.until(lambda: flows.get("counting").cursor == 102, "the cursor")
    runs.wait(flows.trigger("counting", from_=1, to=2).id)
    assert runs.wait(flows.trigger("counting").id).unwrap()["at"] == 104


def test_four_workers_that_connect_at_once_declare_once(start):
    server = start(
        COUNTING + "\n@app.task(schedule={'every': '1h', 'input': {'a': 5}})\ndef later(ctx, a):\n  return a"
    )
    client = server.client()
    scheduled = server.until(lambda: list(client.schedules.list()), "the schedule")
    assert [(each.name, each.task, each.version, each.declared) for each in scheduled] == [
        ("later", "later", 1, "same")
    ]
    first = server.until(lambda: list(client.schedules.runs("later")), "its first run")[-1]
    assert client.runs.wait(first.id, timeout=30).unwrap() == 5
    assert client.flows.get("counting").version == 1
    written = [event.subject for event in client.events(after=0, kinds=["flow.written"], follow=False)]
    assert written == ["counting"]
    assert len(client.schedules.next("later", 5)) == 5


def test_what_somebody_has_changed_stands_until_the_code_says_something_else(start, rewrite):
    hourly = "@app.flow('hourly', every='1h')\ndef hourly(ctx): ...\n"
    server = start(hourly)
    flows = server.client().flows
    flow = server.until(lambda: named(server, "hourly"), "the flow")
    by_hand = flows.put("hourly", {**flow.json, "schedule": {"every": "2h"}, "run_interval": None})
    assert (by_hand.version, by_hand.declared, by_hand.schedule) == (2, "changed", {"every": "2h"})
    flows.disable("hourly")
    rewrite(server, hourly, "again")
    kept = flows.get("hourly")
    assert (kept.version, kept.declared, kept.schedule, kept.enabled) == (2, "changed", {"every": "2h"}, False)
    rewrite(server, hourly.replace("1h", "3h"), "changed")
    now = flows.get("hourly")
    assert (now.version, now.declared, now.schedule) == (3, "same", {"every": "3h"})
    assert not now.enabled, "whether it runs is not for the code to say"
    rewrite(server, "", "removed")
    assert flows.get("hourly").version == 3, "what the code no longer declares stays"
    flows.delete("hourly")
    assert named(server, "hourly") is None


def test_a_flow_that_is_refused_is_named_and_holds_back_no_other(start):
    wrong = "@app.flow('wrong', every='1s', overlap='sometimes')\ndef wrong(ctx): ...\n"
    server = start(wrong + COUNTING)
    (line, *_) = server.expect_line("flow 'wrong' was not accepted")
    assert "overlap" in line
    assert "sometimes" in line
    assert "skip, queue, allow" in line
    assert len(successes(server, "counting")) >= 3
    assert named(server, "wrong") is None
