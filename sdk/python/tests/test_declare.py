"""What apps and graphs say of themselves."""

import asyncio
import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

import everbeat
from everbeat import gates
from everbeat.testing import FakeAttempt
from everbeat.values import encode

SDK = Path(__file__).parent.parent


def test_the_stubs_are_of_the_current_messages():
    proto = SDK.parent.parent / "proto/everbeat/worker/v1/worker.proto"
    digest = hashlib.sha256(proto.read_bytes()).hexdigest()
    for name in ("worker_pb2.py", "worker_pb2.pyi"):
        first = (SDK / "src/everbeat/worker" / name).read_text().splitlines()[0]
        assert first.endswith(digest), f"{name} is of other messages: run sdk/python/scripts/stubs"


def test_a_task_has_the_name_of_its_function_or_another():
    app = everbeat.App()

    @app.task
    def one(ctx): ...

    @app.task("two")
    def other(ctx): ...

    @app.task()
    async def three(ctx): ...

    assert list(app.tasks) == ["one", "two", "three"]
    assert one(None) is None, "it stays an ordinary function"


def test_mistakes_show_when_a_task_is_declared():
    app = everbeat.App()
    app.task("taken")(lambda ctx: None)
    with pytest.raises(ValueError, match="'taken' is declared twice"):
        app.task("taken")(lambda ctx: None)
    with pytest.raises(TypeError, match="must take the context"):
        app.task("bare")(lambda: None)
    app.graph("g")
    with pytest.raises(ValueError, match="graph 'g' is declared twice"):
        app.graph("g")


def test_a_graph_has_the_json_form_of_the_api():
    app = everbeat.App()

    @app.task
    def saved(ctx, **what): ...

    graph = app.graph("loan", version=3, singleton=True, on_save=saved)
    graph.input("ssn", "amount")

    @graph.compute(gate=gates.provided("ssn") & ~gates.gt("amount", 10), args={"k": 1}, deadline="30s")
    def score(ctx, ssn): ...

    @graph.mutate("scrub", mutates="ssn", gate="score")
    async def scrub(ctx): ...

    @graph.tick_recurring("remind", gate=["amount"])
    def remind(ctx): ...

    @graph.loop("search", gate=["score"], max_iterations=5, on_save=saved)
    def search(ctx, search=None): ...

    graph.historian("changes", gate=["score"], max_entries=None)
    graph.archive("done", gate=gates.is_true("score") | ["search"])
    graph.node("shell", "compute", gate=["score"], command=["jq", "."])
    graph.tick("morning", gate="score", cron="0 9 * * *", tz="Europe/Berlin", keep_latest=5)
    graph.tick("soon", gate=["score"], every=timedelta(minutes=10), recurring=False)
    assert graph.definition() == {
        "name": "loan",
        "version": "3",
        "singleton": True,
        "on_save": "saved",
        "nodes": [
            {"name": "ssn", "kind": "input"},
            {"name": "amount", "kind": "input"},
            {
                "name": "score",
                "kind": "compute",
                "gate": {"and": [{"provided": "ssn"}, {"not": {"gt": ["amount", 10]}}]},
                "task": "loan.score",
                "args": {"k": 1},
                "options": {"deadline": "30s"},
            },
            {"name": "scrub", "kind": "mutate", "gate": ["score"], "task": "loan.scrub", "mutates": "ssn"},
            {"name": "remind", "kind": "tick_recurring", "gate": ["amount"], "task": "loan.remind"},
            {
                "name": "search",
                "kind": "loop",
                "gate": ["score"],
                "task": "loan.search",
                "options": {"on_save": "saved", "max_iterations": 5},
            },
            {"name": "changes", "kind": "historian", "gate": ["score"], "options": {"max_entries": None}},
            {"name": "done", "kind": "archive", "gate": {"or": [{"is_true": "score"}, ["search"]]}},
            {"name": "shell", "kind": "compute", "gate": ["score"], "command": ["jq", "."]},
            {
                "name": "morning",
                "kind": "tick_recurring",
                "gate": ["score"],
                "schedule": {"cron": "0 9 * * *", "tz": "Europe/Berlin"},
                "options": {"keep_latest": 5},
            },
            {"name": "soon", "kind": "tick_once", "gate": ["score"], "schedule": {"every": 600.0}},
        ],
    }
    assert set(app.tasks) == {"saved", "loan.score", "loan.scrub", "loan.remind", "loan.search"}
    with pytest.raises(ValueError, match="node 'ssn' of graph 'loan' is declared twice"):
        graph.input("ssn")
    with pytest.raises(ValueError, match="tick 'never' of graph 'loan' has no times: give every or cron"):
        graph.tick("never")
    with pytest.raises(ValueError, match="tick 'both' of graph 'loan' has every and cron: give one of them"):
        graph.tick("both", every="1h", cron="@daily")


def test_gates_are_not_combined_with_and():
    with pytest.raises(TypeError, match="with &"):
        bool(gates.provided("a"))


@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        ({1}, "of type set"),
        ({"a": [1, {"b": object()}]}, "of type object"),
        ({(1, 2): 3}, r"of type tuple \(as a key\)"),
        (float("inf"), "not JSON compliant"),
        ("\ud800", "surrogate"),
        (Path("/"), r"of type pathlib\.PosixPath|of type pathlib\._local\.PosixPath"),
    ],
)
def test_what_is_no_json_is_named(value, culprit):
    with pytest.raises(everbeat.NotJson, match=culprit):
        encode(value, "the result")


def test_a_value_that_holds_itself_is_no_json():
    value = []
    value.append(value)
    with pytest.raises(everbeat.NotJson):
        encode(value, "the result")


def test_a_task_can_be_tried_without_a_server():
    def pages(ctx: everbeat.Context, to: int) -> int:
        for page in range(ctx.resume({"page": 0})["page"], to):
            ctx.heartbeat(done=page, total=to, checkpoint={"page": page + 1})
        return to

    attempt = FakeAttempt(checkpoint={"page": 1}, attempt=2)
    assert pages(attempt.context, 3) == 3
    assert attempt.checkpoints == [{"page": 2}, {"page": 3}]
    assert [beat.done for beat in attempt.beats] == [1, 2]
    attempt.cancel()
    with pytest.raises(everbeat.Cancelled):
        pages(attempt.context, 3)


def test_so_can_an_async_one():
    async def task(ctx: everbeat.AsyncContext) -> int:
        await ctx.heartbeat(note="half")
        await ctx.heartbeat(checkpoint=1)
        return ctx.fence

    attempt = FakeAttempt(attempt=7)
    assert asyncio.run(task(attempt.async_context)) == 7
    assert attempt.checkpoints == [1]


def test_a_cancel_is_not_swallowed_by_except_exception():
    assert not issubclass(everbeat.Cancelled, Exception)
    assert issubclass(everbeat.Cancelled, asyncio.CancelledError)
