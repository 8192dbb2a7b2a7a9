"""The client for event loops. `everbeat.client.blocking` has the same without them."""

from datetime import datetime
from typing import Any, AsyncIterator, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from everbeat.app import DECLARED, Function, Task, name_of
from everbeat.client import core
from everbeat.client.aio_schedules import AsyncFlows, AsyncSchedules
from everbeat.client.core import Core, given, path
from everbeat.client.errors import NotSet
from everbeat.client.records import Accepted, Attempt, Change, Event, Execution, Graph, Item, Job, Run, Value
from everbeat.client.transport import Address, InLoop
from everbeat.graphs import Graph as Declared

When = Union[str, datetime, None]
SessionGiven = Union[str, Mapping[str, Any], None]


class AsyncClient:
    """Talks to a server over HTTP, in an event loop.

    ::

        client = everbeat.AsyncClient()
        run = await client.runs.submit("resize", {"path": "a.png"})
        result = (await client.runs.wait(run.id)).unwrap()

    The URL is that given, else ``EVERBEAT_URL``, else ``http://127.0.0.1:7117``; the token that given, else
    ``EVERBEAT_TOKEN``. A call is tried again for ``patience`` seconds while the server cannot be reached or says
    that it is busy, as far as trying again is safe: everything that creates carries a key that makes it so.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, patience: float = 30.0) -> None:
        url, token = core.settings(url, token)
        self.url = url
        self._core = Core(InLoop(Address(url)), url, token, patience)
        self.runs = AsyncRuns(self._core)
        self.executions = AsyncExecutions(self._core)
        self.graphs = AsyncGraphs(self._core)
        self.jobs = AsyncJobs(self._core)
        self.flows = AsyncFlows(self._core)
        self.schedules = AsyncSchedules(self._core)

    def events(
        self,
        *,
        after: Optional[int] = None,
        kinds: Sequence[str] = (),
        subjects: Sequence[str] = (),
        follow: bool = True,
    ) -> AsyncIterator[Event]:
        """What happens, as it happens: after the event with the id ``after``, else from now on.

        ``kinds`` are like ``run.failed``, or ``run`` for all of a noun; ``subjects`` are ids or names. The iterator
        goes on after the last event when the connection breaks. ``follow=False`` ends it at what is newest now.
        """
        return self._core.events({"kind": list(kinds), "subject": list(subjects)}, after, follow)


class AsyncRuns:
    """Runs of tasks."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def submit(
        self,
        task: Union[str, Function],
        input: Any = None,  # noqa: A002 - the name of the field
        *,
        queue: Optional[str] = None,
        priority: Optional[int] = None,
        run_at: When = None,
        policy: Optional[Mapping[str, Any]] = None,
        unique_key: Optional[str] = None,
        session: SessionGiven = None,
        accept_unknown: Optional[bool] = None,
        idempotency_key: Optional[str] = None,
    ) -> Run:
        """Submits a run of a task, given by its name or as the function that ``@app.task`` declared.

        While a run with the same ``unique_key`` is unfinished, that one is answered. ``accept_unknown`` accepts a
        task that no worker has offered yet.

        Runs of the same ``session`` are performed by the same worker. It is a key, or a dictionary like
        ``{"key": "user-42", "affinity": "strict", "ttl": "10m"}``.
        """
        body = _new_run(task, input, queue, priority, run_at, policy, unique_key, session, accept_unknown)
        return Run(await self._core.create(path("runs"), body, idempotency_key))

    async def batch(
        self, runs: Iterable[Mapping[str, Any]], *, idempotency_key: Optional[str] = None
    ) -> List[Accepted]:
        """Submits many runs in one write; each a dictionary with the arguments of `submit`."""
        body = {"runs": [_new_run(**run) for run in runs]}
        answer = await self._core.create("/api/v1/runs:batch", body, idempotency_key)
        return [Accepted(item) for item in answer["items"]]

    async def get(self, run_id: str) -> Run:
        return Run(await self._core.get(path("runs", run_id)))

    async def wait(self, run_id: str, timeout: Optional[float] = None) -> Run:
        """The run once it is finished, however it ended. Outlives restarts of the server.

        Raises `WaitTimedOut` after ``timeout`` seconds; the run goes on.
        """
        return Run(await self._core.wait(path("runs", run_id), {"wait": "finished"}, timeout, f"run {run_id}"))

    async def cancel(self, run_id: str) -> Run:
        return Run(await self._core.act(path("runs", run_id, "cancel"), repeatable=True))

    async def retry(self, run_id: str) -> Run:
        """Opens a finished run again."""
        return Run(await self._core.act(path("runs", run_id, "retry"), repeatable=False))

    async def explain(self, run_id: str) -> Dict[str, Any]:
        """Why the run is in the state it is in."""
        answer: Dict[str, Any] = await self._core.get(path("runs", run_id, "explain"))
        return answer

    def attempts(self, run_id: str) -> AsyncIterator[Attempt]:
        """The attempts of a run, oldest first."""
        return self._core.pages(path("runs", run_id, "attempts"), {}, Attempt)

    def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[Item]:
        """What the task of the run streams, as it comes and until the run is finished. Outlives restarts.

        ``item.item`` is what a generator yielded. An attempt that is made anew streams anew: ``item.attempt`` tells.
        Begins after the item whose ``seq`` is ``after``.
        """
        return self._core.items(path("runs", run_id, "output"), after)

    async def logs(self, run_id: str, *, tail: Optional[int] = None) -> str:
        """What the task of the run has logged so far."""
        return await self._core.text(path("runs", run_id, "logs"), given(tail=tail))

    def list(
        self,
        *,
        state: Optional[str] = None,
        task: Union[str, Function, None] = None,
        queue: Optional[str] = None,
        kind: Optional[str] = None,
        page_size: Optional[int] = None,
    ) -> AsyncIterator[Run]:
        """Runs, newest first, as many as there are."""
        task = None if task is None else name_of(task)
        query = given(state=state, task=task, queue=queue, kind=kind, limit=page_size)
        return self._core.pages(path("runs"), query, Run)


class AsyncExecutions:
    """Executions of graphs."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def start(
        self,
        graph: Union[str, Declared],
        values: Optional[Mapping[str, Any]] = None,
        *,
        version: Optional[str] = None,
        metadata: Any = None,
        idempotency_key: Optional[str] = None,
    ) -> Execution:
        """Starts an execution, with the first values if any; finds the one that stands if the graph is a singleton."""
        name = graph if isinstance(graph, str) else graph.name
        body = given(graph=name, values=values, version=version, metadata=metadata)
        return Execution(await self._core.create(path("executions"), body, idempotency_key))

    async def get(self, execution_id: str) -> Execution:
        return Execution(await self._core.get(path("executions", execution_id)))

    async def set(self, execution_id: str, values: Mapping[str, Any], *, metadata: Any = None) -> int:
        """Sets values, all at once. Answers the revision of the execution afterwards."""
        body = {"values": values, **given(metadata=metadata)}
        answer = await self._core.put(path("executions", execution_id, "values"), body)
        return int(answer["revision"])

    async def unset(self, execution_id: str, node: str) -> int:
        """Takes a value away. Answers the revision of the execution afterwards."""
        answer = await self._core.delete(path("executions", execution_id, "values", node))
        return int(answer["revision"])

    async def value(
        self,
        execution_id: str,
        node: str,
        *,
        wait: Optional[str] = None,
        revision: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Value:
        """The value of a node.

        ``wait="any"`` waits for one, ``"newer"`` for one newer than now, ``"newer_than"`` for one of a revision
        above ``revision``; each for ``timeout`` seconds, else as long as it takes. Raises `NotSet` without a wait,
        `WaitTimedOut` after it, and `ComputationFailed` if the node has failed for good.
        """
        where = path("executions", execution_id, "values", node)
        if wait is None:
            return Value(await self._core.get(where))
        if wait == "newer":
            # Asked in pieces, "now" would move on and miss what came in between.
            wait, revision = "newer_than", await self._revision(where)
        query = given(wait=wait, revision=revision)
        return Value(await self._core.wait(where, query, timeout, f"node {node!r} of execution {execution_id}"))

    async def _revision(self, where: str) -> int:
        try:
            return int((await self._core.get(where))["revision"])
        except NotSet:
            return 0

    async def values(self, execution_id: str) -> Dict[str, Any]:
        """What is set, by node."""
        return {node: cell["value"] for node, cell in (await self.get(execution_id)).values.items()}

    def history(self, execution_id: str) -> AsyncIterator[Change]:
        """The changes of an execution, oldest first."""
        return self._core.pages(path("executions", execution_id, "history"), {}, Change)

    async def archive(self, execution_id: str) -> Execution:
        return Execution(await self._core.act(path("executions", execution_id, "archive"), repeatable=True))

    async def unarchive(self, execution_id: str) -> Execution:
        return Execution(await self._core.act(path("executions", execution_id, "unarchive"), repeatable=True))

    async def retry(self, execution_id: str, node: str) -> Execution:
        """Has a node that failed computed again."""
        where = path("executions", execution_id, "nodes", node, "retry")
        return Execution(await self._core.act(where, repeatable=False))

    def list(
        self,
        *,
        graph: Union[str, Declared, None] = None,
        where: Sequence[str] = (),
        sort: Optional[str] = None,
        archived: Optional[bool] = None,
        page_size: Optional[int] = None,
    ) -> AsyncIterator[Execution]:
        """Executions; ``where`` has conditions like ``amount.gt:10000``, ``sort`` fields like ``-amount``."""
        name = graph.name if isinstance(graph, Declared) else graph
        query = given(graph=name, where=list(where), sort=sort, archived=archived, limit=page_size)
        return self._core.pages(path("executions"), query, Execution)


class AsyncGraphs:
    """Definitions of graphs."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def apply(
        self,
        graph: Union[Declared, Mapping[str, Any]],
        *,
        accept_unknown: Optional[bool] = None,
        idempotency_key: Optional[str] = None,
    ) -> Graph:
        """Stores a definition. ``accept_unknown`` accepts tasks that no worker has offered yet."""
        definition = graph.definition() if isinstance(graph, Declared) else dict(graph)
        body = {**definition, **given(accept_unknown=accept_unknown)}
        return Graph(await self._core.create(path("graphs"), body, idempotency_key))

    async def get(self, name: str, version: Optional[str] = None) -> Graph:
        return Graph(await self._core.get(path("graphs", name), given(version=version)))

    def list(self) -> AsyncIterator[Graph]:
        return self._core.pages(path("graphs"), {}, Graph)


class AsyncJobs:
    """Commands that outlive whoever asked for them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def submit(
        self,
        command: Sequence[str],
        *,
        name: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        stdin: Optional[str] = None,
        queue: Optional[str] = None,
        priority: Optional[int] = None,
        run_at: When = None,
        policy: Optional[Mapping[str, Any]] = None,
        unique_key: Optional[str] = None,
        session_id: Optional[str] = None,
        agent_engine: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> Job:
        """Submits a program and its arguments; no shell reads them."""
        if isinstance(command, str):
            raise TypeError(f"a command is a list of a program and its arguments, not a line: {command.split()!r}")
        body = given(
            command=list(command),
            name=name,
            env=env,
            cwd=cwd,
            stdin=stdin,
            queue=queue,
            priority=priority,
            run_at=_time(run_at),
            policy=policy,
            unique_key=unique_key,
            sessionId=session_id,
            agentEngine=agent_engine,
        )
        return Job(await self._core.create(path("jobs"), body, idempotency_key))

    async def get(self, job_id: str) -> Job:
        return Job(await self._core.get(path("jobs", job_id)))

    async def wait(self, job_id: str, timeout: Optional[float] = None) -> Job:
        """The job once it is finished, however it ended. Outlives restarts of the server."""
        return Job(await self._core.wait(path("jobs", job_id), {"wait": "finished"}, timeout, f"job {job_id}"))

    async def cancel(self, job_id: str) -> Job:
        return Job(await self._core.act(path("jobs", job_id, "cancel"), repeatable=True))

    async def retry(self, job_id: str) -> Job:
        """Opens a finished job again, in the same workspace."""
        return Job(await self._core.act(path("jobs", job_id, "retry"), repeatable=False))

    async def delete(self, job_id: str) -> None:
        """Removes a finished job, and its workspace."""
        await self._core.delete(path("jobs", job_id))

    async def logs(self, job_id: str, *, stream: Optional[str] = None, tail: Optional[int] = None) -> str:
        """What the job has printed so far: ``stdout``, ``stderr``, or one after the other."""
        return await self._core.text(path("jobs", job_id, "logs"), given(stream=stream, tail=tail))

    def follow(self, job_id: str, *, stream: str = "stdout") -> AsyncIterator[str]:
        """The lines that the job prints, from the first on and until it is finished. Outlives restarts."""
        return self._core.lines(path("jobs", job_id, "logs"), {"stream": stream})

    def list(
        self, *, state: Optional[str] = None, queue: Optional[str] = None, page_size: Optional[int] = None
    ) -> AsyncIterator[Job]:
        """Jobs, newest first, as many as there are."""
        return self._core.pages(path("jobs"), given(state=state, queue=queue, limit=page_size), Job)


def _new_run(
    task: Union[str, Function],
    input: Any = None,  # noqa: A002 - the name of the field
    queue: Optional[str] = None,
    priority: Optional[int] = None,
    run_at: When = None,
    policy: Optional[Mapping[str, Any]] = None,
    unique_key: Optional[str] = None,
    session: SessionGiven = None,
    accept_unknown: Optional[bool] = None,
) -> Dict[str, Any]:
    declared = getattr(task, DECLARED, None)
    if isinstance(declared, Task):
        queue = queue or declared.queue
        policy = {**declared.policy, **(policy or {})} or None
    body = given(
        queue=queue,
        priority=priority,
        run_at=_time(run_at),
        policy=policy,
        unique_key=unique_key,
        session={"key": session} if isinstance(session, str) else session,
        accept_unknown=accept_unknown,
    )
    return {"task": name_of(task), "input": input, **body}


def _time(when: When) -> Optional[str]:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when!r} has no time zone: write datetime.now(timezone.utc)")
        return when.isoformat()
    return when
