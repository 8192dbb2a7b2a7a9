"""The clients and the fixture against the real server."""

import asyncio
import threading
from pathlib import Path

import pytest

import everbeat

pytestmark = pytest.mark.real


@pytest.fixture
def client(everbeat_server):
    return everbeat_server.client()


def test_runs(client):
    run = client.runs.submit("echo", {"a": 1})
    assert client.runs.wait(run.id, timeout=30).unwrap() == {"a": 1}
    failed = client.runs.wait(client.runs.submit("fail", {"message": "no"}, policy={"max_attempts": 1}).id)
    assert failed.state == "failed"
    with pytest.raises(everbeat.Unsuccessful, match="no"):
        failed.unwrap()
    client.runs.retry(failed.id)
    assert client.runs.wait(failed.id, timeout=30).attempt == 2
    assert client.runs.explain(run.id)
    assert [attempt.attempt for attempt in client.runs.attempts(run.id)] == [1]


def test_a_run_with_the_same_key_is_the_same_run(client):
    first = client.runs.submit("echo", 1, idempotency_key="k1")
    assert client.runs.submit("echo", 1, idempotency_key="k1").id == first.id
    assert client.runs.submit("echo", 1).id != first.id


def test_batches_and_lists(client):
    accepted = client.runs.batch([{"task": "noop"} for _ in range(25)])
    assert all(each.created for each in accepted)
    for each in accepted:
        client.runs.wait(each.id, timeout=30)
    listed = [run.id for run in client.runs.list(task="noop", page_size=10)]
    assert sorted(listed) == sorted(each.id for each in accepted)
    assert len(listed) == 25


def test_a_run_is_cancelled(client):
    run = client.runs.submit("sleep", {"ms": 600_000})
    client.runs.cancel(run.id)
    assert client.runs.wait(run.id, timeout=30).state == "cancelled"


def test_a_wait_times_out_and_the_run_goes_on(client):
    run = client.runs.submit("sleep", {"ms": 600_000})
    with pytest.raises(everbeat.WaitTimedOut):
        client.runs.wait(run.id, timeout=0.1)
    assert not client.runs.get(run.id).is_finished


def test_an_unknown_task_is_refused_with_a_hint(client):
    with pytest.raises(everbeat.Problem) as raised:
        client.runs.submit("no_such_task")
    assert raised.value.kind == "unknown-task"
    assert "echo" in raised.value.hint
    assert client.runs.submit("no_such_task", accept_unknown=True).state == "ready"


def test_executions(client):
    app = everbeat.App()
    graph = app.graph("sum")
    graph.input("a", "b")
    graph.node("total", "compute", gate=["a", "b"], task="jq", args={"program": ".a + .b"})
    client.graphs.apply(graph)
    assert client.graphs.get("sum").version == "1"
    execution = client.executions.start(graph, {"a": 1})
    with pytest.raises(everbeat.NotSet):
        client.executions.value(execution.id, "total")
    with pytest.raises(everbeat.WaitTimedOut):
        client.executions.value(execution.id, "total", wait="any", timeout=0.1)
    client.executions.set(execution.id, {"b": 2})
    total = client.executions.value(execution.id, "total", wait="any", timeout=30)
    assert total.value == 3
    revision = client.executions.set(execution.id, {"b": 5}, metadata={"by": "me"})
    assert revision > total.revision
    newer = client.executions.value(execution.id, "total", wait="newer_than", revision=total.revision, timeout=30)
    assert newer.value == 6
    values = client.executions.values(execution.id)
    assert (values["a"], values["b"], values["total"]) == (1, 5, 6)
    assert [change.node for change in client.executions.history(execution.id)][:2] == ["a", "b"]
    client.executions.unset(execution.id, "b")
    assert "b" not in client.executions.values(execution.id)
    assert client.executions.archive(execution.id).archived_at
    assert [each.id for each in client.executions.list(graph="sum", archived=True)] == [execution.id]


def test_a_tick_by_a_schedule(client):
    graph = everbeat.App().graph("ticking")
    graph.input("a")
    graph.tick("soon", gate=["a"], every="1s", recurring=False)
    graph.tick("nightly", gate=["a"], cron="30 2 * * *", tz="Europe/Berlin")
    graph.node("fired", "compute", gate=["soon"], task="jq", args={"program": "[.soon, .a]"})
    client.graphs.apply(graph)
    execution = client.executions.start(graph, {"a": 5})
    soon = client.executions.value(execution.id, "soon").value
    assert client.executions.value(execution.id, "fired", wait="any", timeout=30).value == [soon, 5]
    assert client.executions.get(execution.id).nodes["nightly"]["state"] == "computed"


def test_a_node_that_failed_for_good_is_said_at_once(client):
    failing = {"name": "no", "kind": "compute", "gate": ["a"], "task": "fail", "args": {"message": "never"}}
    nodes = [{"name": "a", "kind": "input"}, {**failing, "options": {"max_attempts": 1}}]
    client.graphs.apply({"name": "failing", "nodes": nodes})
    execution = client.executions.start("failing", {"a": 1})
    with pytest.raises(everbeat.ComputationFailed):
        client.executions.value(execution.id, "no", wait="any", timeout=30)


def test_jobs(client):
    job = client.jobs.submit(["sh", "-c", "echo one; echo two; echo wrong >&2; exit 3"], name="three")
    assert list(client.jobs.follow(job.id)) == ["one", "two"]
    ended = client.jobs.wait(job.id, timeout=30)
    assert (ended.state, ended.exit_code, ended.name) == ("failed", 3, "three")
    assert client.jobs.logs(job.id, stream="stderr") == "wrong\n"
    assert client.jobs.logs(job.id, stream="stdout", tail=1) == "two\n"
    client.jobs.delete(job.id)
    with pytest.raises(everbeat.NotFound):
        client.jobs.get(job.id)
    endless = client.jobs.submit(["sleep", "600"])
    client.jobs.cancel(endless.id)
    assert client.jobs.wait(endless.id, timeout=30).state == "cancelled"


def test_events(client):
    run = client.runs.submit("echo", 1)
    client.runs.wait(run.id)
    kinds = [event.kind for event in client.events(after=0, subjects=[run.id], follow=False)]
    assert kinds[0] == "run.created"
    assert "run.succeeded" in kinds


def test_waits_and_events_outlive_a_crash_of_the_server(everbeat_server):
    client = everbeat_server.client()
    run = client.runs.submit("sleep", {"ms": 1500})
    seen, waited = [], []

    def follow() -> None:
        for event in client.events(after=0, subjects=[run.id]):
            seen.append(event.kind)
            if event.kind == "run.succeeded":
                return

    threads = [
        threading.Thread(target=follow),
        threading.Thread(target=lambda: waited.append(client.runs.wait(run.id, timeout=60))),
    ]
    for thread in threads:
        thread.start()
    everbeat_server.kill()
    everbeat_server.start()
    for thread in threads:
        thread.join(60)
    assert waited[0].succeeded
    assert seen[-1] == "run.succeeded"


def test_the_async_client(everbeat_server):
    async def scenario() -> None:
        client = everbeat_server.async_client()
        runs = await asyncio.gather(*(client.runs.submit("sleep", {"ms": 300}) for _ in range(50)))
        ended = await asyncio.gather(*(client.runs.wait(run.id, timeout=60) for run in runs))
        assert all(run.succeeded for run in ended)
        assert len([run async for run in client.runs.list(task="sleep")]) == 50
        job = await client.jobs.submit(["sh", "-c", "echo hello"])
        assert [line async for line in client.jobs.follow(job.id)] == ["hello"]
        async for event in client.events(after=0, kinds=["run.succeeded"]):
            assert event.kind == "run.succeeded"
            break

    asyncio.run(scenario())


def test_a_server_leaves_nothing(everbeat_server):
    client = everbeat_server.client()
    job = client.jobs.submit(["sh", "-c", "echo $$; exec sleep 600"])
    pid = int(next(client.jobs.follow(job.id)))
    folder = everbeat_server.folder
    everbeat_server.stop()
    assert not Path(folder).exists()
    assert not _is_sleeping(pid)


def _is_sleeping(pid: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.everbeat(app="tasks:app")
def test_a_pool_performs_an_app(request, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent / "apps")
    server = request.getfixturevalue("everbeat_server")
    client = server.client()
    run = client.runs.submit("add", {"a": 1, "b": 2})
    assert client.runs.wait(run.id, timeout=30).unwrap() == 3


@pytest.mark.everbeat(app="tasks:app")
def test_what_a_task_streams_is_followed_through_a_crash_of_the_server(request, monkeypatch, tmp_path):
    monkeypatch.chdir(Path(__file__).parent / "apps")
    server = request.getfixturevalue("everbeat_server")
    client = server.client()
    run = client.runs.submit("count_on", {"path": str(tmp_path / "go")})
    items = client.runs.follow(run.id)
    first, second = next(items), next(items)
    assert [(each.attempt, each.item) for each in (first, second)] == [(1, 1), (1, 2)]
    server.kill()
    server.start()
    (tmp_path / "go").touch()
    assert [(each.attempt, each.item) for each in items] == [(2, 1), (2, 2), (2, 3)]
    assert client.runs.logs(run.id, tail=1) == "counted in attempt 2\n"
    later = server.async_client()

    async def again() -> list:
        return [each.item async for each in later.runs.follow(run.id, after=second.seq)]

    assert asyncio.run(again()) == [1, 2, 3]
