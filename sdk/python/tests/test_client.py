"""The clients against a server that the test plays."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import everbeat
from everbeat.client.transport import finish

RUN = {"id": "r1", "task": "echo", "state": "succeeded", "result": 5, "error": None, "finished_at": "now"}


class Script:
    """Answers requests one after the other, as the test has written them down."""

    def __init__(self) -> None:
        self.requests = []
        self.answers = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                script.requests.append((self.command, self.path, dict(self.headers), body))
                answer = script.answers.pop(0)
                self.close_connection = True
                if answer is None:
                    return  # Cut.
                if isinstance(answer, bytes):
                    self.wfile.write(answer)
                    return
                status, content = answer
                data = json.dumps(content).encode()
                kind = "application/problem+json" if status >= 400 else "application/json"
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def script():
    script = Script()
    yield script
    script.close()


class Awaiting:
    """An `AsyncClient` with the face of a `Client`: each call runs a loop of its own."""

    def __init__(self, target) -> None:
        self._target = target

    def __getattr__(self, name):
        found = getattr(self._target, name)
        if not callable(found):
            return Awaiting(found)

        def call(*args, **named):
            result = found(*args, **named)
            if hasattr(result, "__aiter__"):
                return iter(asyncio.run(_all(result)))
            return asyncio.run(result)

        return call


async def _all(items):
    return [item async for item in items]


@pytest.fixture(params=["blocking", "in a loop"])
def client(request, script):
    if request.param == "blocking":
        return everbeat.Client(script.url, "tok", patience=5)
    return Awaiting(everbeat.AsyncClient(script.url, "tok", patience=5))


def problem(status, kind, **more):
    body = {"type": f"https://everbeat.dev/problems/{kind}", "title": "t", "detail": "d", "hint": "h", **more}
    return (status, body)


def test_a_submit_says_everything_and_carries_a_key(client, script):
    script.answers = [(201, RUN)]
    run = client.runs.submit("echo", {"a": 1}, queue="q", policy={"deadline": "1s"})
    method, path, headers, body = script.requests[0]
    assert (method, path) == ("POST", "/api/v1/runs")
    assert json.loads(body) == {"task": "echo", "input": {"a": 1}, "queue": "q", "policy": {"deadline": "1s"}}
    headers = {name.lower(): value for name, value in headers.items()}
    assert headers["authorization"] == "Bearer tok"
    assert headers["content-type"] == "application/json"
    assert len(headers["idempotency-key"]) >= 16
    assert run.id == "r1"
    assert run.unwrap() == 5


def test_a_declared_function_is_submitted_with_its_settings(client, script):
    app = everbeat.App()

    @app.task("mine", queue="slow", policy={"max_attempts": 5, "deadline": "1m"})
    def task(ctx): ...

    script.answers = [(201, RUN)]
    client.runs.submit(task, policy={"deadline": "2m"})
    said = json.loads(script.requests[0][3])
    assert said == {
        "task": "mine",
        "input": None,
        "queue": "slow",
        "policy": {"max_attempts": 5, "deadline": "2m"},
    }
    with pytest.raises(TypeError, match="is not a task"):
        client.runs.submit(lambda ctx: None)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_passing_trouble_is_waited_out_with_the_same_key(client, script, status):
    script.answers = [problem(status, "busy"), None, (201, RUN)]
    client.runs.submit("echo")
    keys = {headers.get("idempotency-key") or headers.get("Idempotency-Key") for _, _, headers, _ in script.requests}
    assert len(script.requests) == 3
    assert len(keys) == 1


def test_what_must_not_be_done_twice_is_not_sent_twice(client, script):
    script.answers = [problem(503, "unavailable")]
    with pytest.raises(everbeat.Problem):
        client.runs.retry("r1")
    script.answers = [None]
    with pytest.raises(everbeat.Unreachable, match="not known"):
        client.runs.retry("r1")
    script.answers = [problem(429, "too-many"), (200, RUN)]
    assert client.runs.retry("r1").id == "r1"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(404, "not-found"), everbeat.NotFound),
        (problem(409, "conflict"), everbeat.Conflict),
        (problem(401, "unauthorized"), everbeat.Forbidden),
        (problem(422, "unknown-task", field="task", value='"x"'), everbeat.Problem),
        ((500, "not even an object"), everbeat.Problem),
    ],
)
def test_problems_are_exceptions_that_say_what_the_server_said(client, script, answer, error):
    script.answers = [answer]
    with pytest.raises(error) as raised:
        client.runs.get("r1")
    assert raised.value.status == answer[0]
    if answer[0] == 422:
        found = raised.value
        assert (found.kind, found.title, found.detail, found.hint) == ("unknown-task", "t", "d", "h")
        assert (found.field, found.value) == ("task", '"x"')


def test_a_wait_outlives_a_server_that_is_away(client, script):
    over = problem(408, "wait-timed-out")
    script.answers = [
        over,
        None,
        problem(503, "starting"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
        (200, RUN),
    ]
    assert client.runs.wait("r1").result == 5
    assert len(script.requests) == 5
    assert script.requests[0][1].startswith("/api/v1/runs/r1?wait=finished&timeout=")


def test_a_wait_that_is_over_raises(client, script):
    script.answers = [problem(408, "wait-timed-out")] * 50
    with pytest.raises(everbeat.WaitTimedOut):
        client.runs.wait("r1", timeout=0.01)
    assert issubclass(everbeat.WaitTimedOut, TimeoutError)


def test_nobody_there_is_said_when_patience_ends():
    client = everbeat.Client("http://127.0.0.1:1", patience=0.2)
    with pytest.raises(everbeat.Unreachable, match=r"http://127\.0\.0\.1:1"):
        client.runs.get("r1")


def test_lists_go_from_page_to_page(client, script):
    script.answers = [
        (200, {"items": [{"id": "a"}, {"id": "b"}], "next_cursor": "b c"}),
        (200, {"items": [{"id": "c"}], "next_cursor": None}),
    ]
    assert [run.id for run in client.runs.list(state="failed")] == ["a", "b", "c"]
    assert script.requests[1][1] == "/api/v1/runs?state=failed&cursor=b+c"


def chunked(*pieces, end=True):
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body


def test_events_are_taken_up_where_the_stream_broke(client, script):
    one = b'id: 1\nevent: run.created\ndata: {"id": 1, "kind": "run.created", "subject": "a"}\n\n'
    two = b'id: 2\nevent: run.failed\ndata: {"id": 2, "kind": "run.failed", "subject": "a"}\n\n'
    script.answers = [chunked(b"retry: 1000\n\n", b":\n\n", one, two[:20], end=False), chunked(two)]
    events = client.events(after=0, kinds=["run"], subjects=["a"], follow=False)
    assert [(event.id, event.kind, event.subject) for event in events] == [
        (1, "run.created", "a"),
        (2, "run.failed", "a"),
    ]
    paths = [path for _, path, _, _ in script.requests]
    assert paths == [
        "/api/v1/events?kind=run&subject=a&follow=false&after=0",
        "/api/v1/events?kind=run&subject=a&follow=false&after=1",
    ]


def test_output_is_followed_over_a_broken_connection(client, script):
    script.answers = [chunked(b"one\ntw", end=False), chunked(b"o\nthree")]
    assert list(client.jobs.follow("j1")) == ["one", "two", "three"]
    assert script.requests[1][1] == "/api/v1/jobs/j1/logs?stream=stdout&follow=true&offset=6"


def test_ids_cannot_leave_their_place_in_the_path(client, script):
    script.answers = [(200, RUN)]
    client.runs.get("../jobs?x=1")
    assert script.requests[0][1] == "/api/v1/runs/..%2Fjobs%3Fx%3D1"


def test_a_run_that_did_not_succeed_has_no_result(client, script):
    script.answers = [(200, {**RUN, "state": "failed", "error": {"message": "ValueError: x"}})]
    run = client.runs.get("r1")
    with pytest.raises(everbeat.Unsuccessful, match="ValueError: x") as raised:
        run.unwrap()
    assert raised.value.run is run


def test_the_environment_says_where_the_server_is(monkeypatch, script):
    monkeypatch.setenv("EVERBEAT_URL", script.url)
    monkeypatch.setenv("EVERBEAT_TOKEN", "from-env")
    script.answers = [(200, RUN)]
    everbeat.Client().runs.get("r1")
    headers = {name.lower(): value for name, value in script.requests[0][2].items()}
    assert headers["authorization"] == "Bearer from-env"


def test_values_that_are_no_json_are_refused_before_anything_is_sent(client, script):
    with pytest.raises(everbeat.NotJson, match="of type set"):
        client.runs.submit("echo", {1, 2})
    assert script.requests == []


def test_a_command_is_no_line(client, script):
    with pytest.raises(TypeError, match=r"\['ls', '-l'\]"):
        client.jobs.submit("ls -l")


def test_both_clients_have_the_same_methods():
    import inspect

    from everbeat.client import aio, blocking

    for name in ("Client", "Runs", "Executions", "Graphs", "Jobs"):
        plain, awaited = getattr(blocking, name), getattr(aio, f"Async{name}")
        public = {each for each in vars(awaited) if not each.startswith("_")}
        assert public == {each for each in vars(plain) if not each.startswith("_")}
        for method in public:
            ours, theirs = (inspect.signature(getattr(side, method)) for side in (plain, awaited))
            assert ours.parameters.keys() == theirs.parameters.keys(), (name, method)
            assert getattr(plain, method).__doc__ == getattr(awaited, method).__doc__, (name, method)


def test_the_blocking_side_never_suspends():
    with pytest.raises(RuntimeError, match="suspended"):
        finish(asyncio.sleep(0))


def test_flows_are_written_asked_for_and_listed(client, script):
    flow = {"name": "a b", "version": 3, "enabled": True, "declared": None}
    run = {"id": "r1", "flow": "a b", "status": "pending"}
    app = everbeat.App()
    app.flow("f", every="1h")(lambda ctx: None)
    script.answers = [
        (201, flow),
        (200, flow),
        (200, flow),
        (200, {**flow, "enabled": False}),
        (200, flow),
        (202, run),
        (201, run),
        (200, {"items": [run], "next_cursor": "c"}),
        (200, {"items": [run], "next_cursor": None}),
        (200, {"items": ["2026-03-29T01:00:00Z"]}),
        (200, {"items": [flow], "next_cursor": None}),
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ]
    assert client.flows.put("a b", {"run_interval": 60}, version=2, enabled=True, accept_unknown=True).version == 3
    assert client.flows.put("f", app.flows[0]).name == "a b"
    assert client.flows.get("a b").enabled
    assert not client.flows.disable("a b").enabled
    assert client.flows.enable("a b").enabled
    assert client.flows.trigger("a b", from_=1, to=5).status == "pending"
    assert client.flows.trigger("a b").id == "r1"
    assert [each.id for each in client.flows.runs("a b", page_size=1)] == ["r1", "r1"]
    assert client.flows.next("a b", 1) == ["2026-03-29T01:00:00Z"]
    assert [each.name for each in client.flows.list()] == ["a b"]
    client.flows.delete("a b", version=3)
    said = [(method, path.replace("/api/v1/flows", "")) for method, path, _, _ in script.requests]
    assert said == [
        ("PUT", "/a%20b"),
        ("PUT", "/f"),
        ("GET", "/a%20b"),
        ("POST", "/a%20b/disable"),
        ("POST", "/a%20b/enable"),
        ("POST", "/a%20b/trigger"),
        ("POST", "/a%20b/trigger"),
        ("GET", "/a%20b/runs?limit=1"),
        ("GET", "/a%20b/runs?limit=1&cursor=c"),
        ("GET", "/a%20b/next?limit=1"),
        ("GET", ""),
        ("DELETE", "/a%20b"),
    ]
    headers = [{name.lower(): value for name, value in headers.items()} for _, _, headers, _ in script.requests]
    assert (headers[0]["if-match"], headers[-1]["if-match"], headers[1].get("if-match")) == ('"2"', '"3"', None)
    bodies = [body for _, _, _, body in script.requests]
    assert json.loads(bodies[0]) == {"run_interval": 60, "enabled": True, "accept_unknown": True}
    assert json.loads(bodies[1]) == app.flows[0].definition()
    assert (json.loads(bodies[5]), bodies[6]) == ({"from": 1, "to": 5}, b"")


def test_schedules_have_the_same_methods_and_a_trigger_is_sent_once(client, script):
    schedule = {"name": "s", "task": "t", "version": 1}
    script.answers = [(201, schedule), (200, schedule), problem(503, "unavailable")]
    assert client.schedules.put("s", {"task": "t", "schedule": {"every": "1h"}}).task == "t"
    assert client.schedules.get("s").version == 1
    with pytest.raises(everbeat.Problem):
        client.schedules.trigger("s")
    assert [path for _, path, _, _ in script.requests] == [
        "/api/v1/schedules/s",
        "/api/v1/schedules/s",
        "/api/v1/schedules/s/trigger",
    ]
