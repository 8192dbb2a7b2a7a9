"""What apps say of their flows and schedules, and what their functions are told."""

import json
from datetime import datetime, timedelta, timezone

import pytest

import everbeat
from everbeat.testing import FakeAttempt
from everbeat.worker import worker_pb2 as pb
from everbeat.worker.perform import arguments


def test_a_flow_has_the_json_form_of_the_api():
    app = everbeat.App()

    @app.flow("products", every="15m", configuration={"table": "products", "most": 5})
    def products(ctx, table, most=1): ...

    @app.flow(
        cron="30 2 * * *",
        tz="Europe/Berlin",
        overlap="queue",
        catch_up="all",
        late_after=timedelta(minutes=10),
        queue="night",
        priority=3,
        policy={"max_attempts": 7},
        concurrency=2,
        group="warehouse",
        after=["prices", products],
        description="Orders of the day",
    )
    async def orders(ctx, **configuration): ...

    @app.flow("hourly", run_interval=3600)
    def hourly(ctx): ...

    @app.flow
    def asked(ctx): ...

    assert [flow.definition() for flow in app.flows] == [
        {
            "name": "products",
            "configuration": {"table": "products", "most": 5, "task": "products"},
            "schedule": {"every": "15m"},
        },
        {
            "name": "orders",
            "configuration": {"task": "orders"},
            "schedule": {"cron": "30 2 * * *", "tz": "Europe/Berlin"},
            "overlap": "queue",
            "catch_up": "all",
            "late_after": 600.0,
            "queue": "night",
            "priority": 3,
            "policy": {"max_attempts": 7},
            "concurrency": 2,
            "group": "warehouse",
            "after": ["prices", "products"],
            "description": "Orders of the day",
        },
        {"name": "hourly", "configuration": {"task": "hourly"}, "run_interval": 3600},
        {"name": "asked", "configuration": {"task": "asked"}},
    ]
    assert list(app.tasks) == ["products", "orders", "hourly", "asked"]
    assert products(None, "t") is None, "it stays an ordinary function"


def test_a_task_has_schedules():
    app = everbeat.App()

    @app.task("report", queue="slow", policy={"max_attempts": 2}, schedule={"every": 90, "input": {"full": True}})
    def report(ctx, full): ...

    daily = everbeat.Schedule(cron="@daily", name="daily", policy={"deadline": "1h"}, queue="night")
    weekly = everbeat.Schedule(every=timedelta(days=7), name="weekly", overlap="skip")

    @app.task(schedule=[daily, weekly])
    def clean(ctx): ...

    assert [schedule.definition() for schedule in app.schedules] == [
        {
            "name": "report",
            "task": "report",
            "input": {"full": True},
            "schedule": {"every": 90},
            "queue": "slow",
            "policy": {"max_attempts": 2},
        },
        {
            "name": "daily",
            "task": "clean",
            "schedule": {"cron": "@daily"},
            "queue": "night",
            "policy": {"deadline": "1h"},
        },
        {"name": "weekly", "task": "clean", "schedule": {"every": 604800.0}, "overlap": "skip"},
    ]


def test_mistakes_show_when_a_flow_is_declared():
    app = everbeat.App()

    def function(ctx, table="t"): ...

    def refused(error, match, name="f", function=function, **settings):
        with pytest.raises(error, match=match):
            app.flow(name, **settings)(function)

    refused(ValueError, "flow 'f' has every and cron: give one", every="1h", cron="* * * * *")
    refused(ValueError, "flow 'f' has every and run_interval: give one", every="1h", run_interval=5)
    refused(ValueError, "tz='UTC', which belongs to cron", every="1h", tz="UTC")
    refused(ValueError, "a field 'task'", configuration={"task": "other"})
    refused(ValueError, "name of a task of the server", name="flow")
    refused(TypeError, "flow 'f' cannot be called with its configuration: .*'tabel'", configuration={"tabel": 1})
    refused(TypeError, "cannot be called with its configuration: .*'table'", function=lambda ctx, table: None)
    refused(everbeat.NotJson, "flow 'f' is not JSON: it holds a value of type set", configuration={"table": {1}})
    refused(TypeError, "give a list of names", after="other")
    assert (app.flows, dict(app.tasks)) == ([], {}), "nothing is left of what was refused"
    app.flow("f")(function)
    refused(ValueError, "task 'f' is declared twice")
    with pytest.raises(TypeError, match=r"the schedule of task 't' cannot be read: .*'evry'"):
        app.task("t", schedule={"evry": "1h"})(function)
    with pytest.raises(TypeError, match="is of type str"):
        app.task("t", schedule="1h")(function)
    app.task("one", schedule={"every": "1h", "name": "same"})(lambda ctx: None)
    with pytest.raises(ValueError, match="schedule 'same' is declared twice"):
        app.task("two", schedule={"every": "1h", "name": "same"})(lambda ctx: None)


def test_the_function_of_a_flow_gets_its_configuration_and_not_its_task():
    app = everbeat.App()
    app.flow("copy", configuration={"table": "t"})(lambda ctx, table: None)
    assert arguments(app.tasks["copy"], '{"task": "copy", "table": "t"}') == ((), {"table": "t"})
    app.task("plain")(lambda ctx, task: None)
    assert arguments(app.tasks["plain"], '{"task": 1}') == ((), {"task": 1})


def test_a_context_tells_what_is_asked_of_a_flow():
    due = datetime(2026, 3, 29, 1, 0, tzinfo=timezone.utc)
    ctx = FakeAttempt(flow="orders", due_at=due, cursor={"id": 7}, from_=1, to=5, cause="asked").async_context
    assert (ctx.flow, ctx.schedule, ctx.due_at, ctx.cause) == ("orders", None, due, "asked")
    assert (ctx.cursor, ctx.from_, ctx.to) == ({"id": 7}, 1, 5)
    told = {"schedule": "report", "due_at": "2026-03-29T01:00:00.000000Z", "cause": "clock"}
    ctx = FakeAttempt(args=told).context
    assert (ctx.schedule, ctx.flow, ctx.due_at, ctx.cause) == ("report", None, due, "clock")
    assert (ctx.cursor, ctx.from_, ctx.to) == (None, None, None)
    for ctx in (FakeAttempt().context, FakeAttempt(args=told, execution_id="e", node="n").context):
        assert (ctx.flow, ctx.schedule, ctx.due_at, ctx.cause, ctx.cursor) == (None, None, None, None, None)


def test_a_hello_tells_of_flows_and_schedules_and_a_refusal_is_said(server, start):
    worker = start("flows:app", socket=server.path)
    link = server.welcomed()
    assert [json.loads(flow)["name"] for flow in link.hello.flows] == ["copy"]
    (schedule,) = map(json.loads, link.hello.schedules)
    assert schedule == {"name": "report", "task": "report", "schedule": {"every": "1h"}}
    link.send(declined=pb.Declined(kind="flow", name="copy", problem="overlap is wrong"))
    worker.expect_line("everbeat: flow 'copy' was not accepted: overlap is wrong")
    assert worker.process.poll() is None, "it goes on with the rest"
