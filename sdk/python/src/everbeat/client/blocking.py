"""The client without an event loop. `everbeat.client.aio` does the work: the methods here have its names."""

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

from everbeat.app import Function
from everbeat.client import core
from everbeat.client.aio import AsyncExecutions, AsyncGraphs, AsyncJobs, AsyncRuns, SessionGiven, When
from everbeat.client.blocking_schedules import Flows, Schedules
from everbeat.client.core import Core
from everbeat.client.records import Accepted, Attempt, Change, Event, Execution, Graph, Item, Job, Run, Value
from everbeat.client.transport import Address, Blocking, finish, iterate
from everbeat.graphs import Graph as Declared


class Client:
    """Talks to a server over HTTP. May be used by many threads at once.

    ::

        client = everbeat.Client()
        run = client.runs.submit("resize", {"path": "a.png"})
        result = client.runs.wait(run.id).unwrap()

    The URL is that given, else ``EVERBEAT_URL``, else ``http://127.0.0.1:7117``; the token that given, else
    ``EVERBEAT_TOKEN``. A call is tried again for ``patience`` seconds while the server cannot be reached or says
    that it is busy, as far as trying again is safe: everything that creates carries a key that makes it so.
    """

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, patience: float = 30.0) -> None:
        url, token = core.settings(url, token)
        self.url = url
        self._core = Core(Blocking(Address(url)), url, token, patience)
        self.runs = Runs(self._core)
        self.executions = Executions(self._core)
        self.graphs = Graphs(self._core)
        self.jobs = Jobs(self._core)
        self.flows = Flows(self._core)
        self.schedules = Schedules(self._core)

    def events(
        self,
        *,
        after: Optional[int] = None,
        kinds: Sequence[str] = (),
        subjects: Sequence[str] = (),
        follow: bool = True,
    ) -> Iterator[Event]:
        """What happens, as it happens: after the event with the id ``after``, else from now on.

        ``kinds`` are like ``run.failed``, or ``run`` for all of a noun; ``subjects`` are ids or names. The iterator
        goes on after the last event when the connection breaks. ``follow=False`` ends it at what is newest now.
        """
        return iterate(self._core.events({"kind": list(kinds), "subject": list(subjects)}, after, follow))


class Runs:
    """Runs of tasks."""

    def __init__(self, core: Core) -> None:
        self._awaited = AsyncRuns(core)

    def submit(
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
        return finish(
            self._awaited.submit(
                task,
                input,
                queue=queue,
                priority=priority,
                run_at=run_at,
                policy=policy,
                unique_key=unique_key,
                session=session,
                accept_unknown=accept_unknown,
                idempotency_key=idempotency_key,
            )
        )

    def batch(self, runs: Iterable[Mapping[str, Any]], *, idempotency_key: Optional[str] = None) -> List[Accepted]:
        """Submits many runs in one write; each a dictionary with the arguments of `submit`."""
        return finish(self._awaited.batch(runs, idempotency_key=idempotency_key))

    def get(self, run_id: str) -> Run:
        return finish(self._awaited.get(run_id))

    def wait(self, run_id: str, timeout: Optional[float] = None) -> Run:
        """The run once it is finished, however it ended. Outlives restarts of the server.

        Raises `WaitTimedOut` after ``timeout`` seconds; the run goes on.
        """
        return finish(self._awaited.wait(run_id, timeout))

    def cancel(self, run_id: str) -> Run:
        return finish(self._awaited.cancel(run_id))

    def retry(self, run_id: str) -> Run:
        """Opens a finished run again."""
        return finish(self._awaited.retry(run_id))

    def explain(self, run_id: str) -> Dict[str, Any]:
        """Why the run is in the state it is in."""
        return finish(self._awaited.explain(run_id))

    def attempts(self, run_id: str) -> Iterator[Attempt]:
        """The attempts of a run, oldest first."""
        return iterate(self._awaited.attempts(run_id))

    def follow(self, run_id: str, *, after: int = 0) -> Iterator[Item]:
        """What the task of the run streams, as it comes and until the run is finished. Outlives restarts.

        ``item.item`` is what a generator yielded. An attempt that is made anew streams anew: ``item.attempt`` tells.
        Begins after the item whose ``seq`` is ``after``.
        """
        return iterate(self._awaited.follow(run_id, after=after))

    def logs(self, run_id: str, *, tail: Optional[int] = None) -> str:
        """What the task of the run has logged so far."""
        return finish(self._awaited.logs(run_id, tail=tail))

    def list(
        self,
        *,
        state: Optional[str] = None,
        task: Union[str, Function, None] = None,
        queue: Optional[str] = None,
        kind: Optional[str] = None,
        page_size: Optional[int] = None,
    ) -> Iterator[Run]:
        """Runs, newest first, as many as there are."""
        return iterate(self._awaited.list(state=state, task=task, queue=queue, kind=kind, page_size=page_size))


class Executions:
    """Executions of graphs."""

    def __init__(self, core: Core) -> None:
        self._awaited = AsyncExecutions(core)

    def start(
        self,
        graph: Union[str, Declared],
        values: Optional[Mapping[str, Any]] = None,
        *,
        version: Optional[str] = None,
        metadata: Any = None,
        idempotency_key: Optional[str] = None,
    ) -> Execution:
        """Starts an execution, with the first values if any; finds the one that stands if the graph is a singleton."""
        return finish(
            self._awaited.start(graph, values, version=version, metadata=metadata, idempotency_key=idempotency_key)
        )

    def get(self, execution_id: str) -> Execution:
        return finish(self._awaited.get(execution_id))

    def set(self, execution_id: str, values: Mapping[str, Any], *, metadata: Any = None) -> int:
        """Sets values, all at once. Answers the revision of the execution afterwards."""
        return finish(self._awaited.set(execution_id, values, metadata=metadata))

    def unset(self, execution_id: str, node: str) -> int:
        """Takes a value away. Answers the revision of the execution afterwards."""
        return finish(self._awaited.unset(execution_id, node))

    def value(
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
        return finish(self._awaited.value(execution_id, node, wait=wait, revision=revision, timeout=timeout))

    def values(self, execution_id: str) -> Dict[str, Any]:
        """What is set, by node."""
        return finish(self._awaited.values(execution_id))

    def history(self, execution_id: str) -> Iterator[Change]:
        """The changes of an execution, oldest first."""
        return iterate(self._awaited.history(execution_id))

    def archive(self, execution_id: str) -> Execution:
        return finish(self._awaited.archive(execution_id))

    def unarchive(self, execution_id: str) -> Execution:
        return finish(self._awaited.unarchive(execution_id))

    def retry(self, execution_id: str, node: str) -> Execution:
        """Has a node that failed computed again."""
        return finish(self._awaited.retry(execution_id, node))

    def list(
        self,
        *,
        graph: Union[str, Declared, None] = None,
        where: Sequence[str] = (),
        sort: Optional[str] = None,
        archived: Optional[bool] = None,
        page_size: Optional[int] = None,
    ) -> Iterator[Execution]:
        """Executions; ``where`` has conditions like ``amount.gt:10000``, ``sort`` fields like ``-amount``."""
        return iterate(self._awaited.list(graph=graph, where=where, sort=sort, archived=archived, page_size=page_size))


class Graphs:
    """Definitions of graphs."""

    def __init__(self, core: Core) -> None:
        self._awaited = AsyncGraphs(core)

    def apply(
        self,
        graph: Union[Declared, Mapping[str, Any]],
        *,
        accept_unknown: Optional[bool] = None,
        idempotency_key: Optional[str] = None,
    ) -> Graph:
        """Stores a definition. ``accept_unknown`` accepts tasks that no worker has offered yet."""
        return finish(self._awaited.apply(graph, accept_unknown=accept_unknown, idempotency_key=idempotency_key))

    def get(self, name: str, version: Optional[str] = None) -> Graph:
        return finish(self._awaited.get(name, version))

    def list(self) -> Iterator[Graph]:
        return iterate(self._awaited.list())


class Jobs:
    """Commands that outlive whoever asked for them."""

    def __init__(self, core: Core) -> None:
        self._awaited = AsyncJobs(core)

    def submit(
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
        return finish(
            self._awaited.submit(
                command,
                name=name,
                env=env,
                cwd=cwd,
                stdin=stdin,
                queue=queue,
                priority=priority,
                run_at=run_at,
                policy=policy,
                unique_key=unique_key,
                session_id=session_id,
                agent_engine=agent_engine,
                idempotency_key=idempotency_key,
            )
        )

    def get(self, job_id: str) -> Job:
        return finish(self._awaited.get(job_id))

    def wait(self, job_id: str, timeout: Optional[float] = None) -> Job:
        """The job once it is finished, however it ended. Outlives restarts of the server."""
        return finish(self._awaited.wait(job_id, timeout))

    def cancel(self, job_id: str) -> Job:
        return finish(self._awaited.cancel(job_id))

    def retry(self, job_id: str) -> Job:
        """Opens a finished job again, in the same workspace."""
        return finish(self._awaited.retry(job_id))

    def delete(self, job_id: str) -> None:
        """Removes a finished job, and its workspace."""
        finish(self._awaited.delete(job_id))

    def logs(self, job_id: str, *, stream: Optional[str] = None, tail: Optional[int] = None) -> str:
        """What the job has printed so far: ``stdout``, ``stderr``, or one after the other."""
        return finish(self._awaited.logs(job_id, stream=stream, tail=tail))

    def follow(self, job_id: str, *, stream: str = "stdout") -> Iterator[str]:
        """The lines that the job prints, from the first on and until it is finished. Outlives restarts."""
        return iterate(self._awaited.follow(job_id, stream=stream))

    def list(
        self, *, state: Optional[str] = None, queue: Optional[str] = None, page_size: Optional[int] = None
    ) -> Iterator[Job]:
        """Jobs, newest first, as many as there are."""
        return iterate(self._awaited.list(state=state, queue=queue, page_size=page_size))
