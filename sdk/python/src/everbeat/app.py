"""Tasks, graphs, flows and schedules, by name."""

import inspect
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar, Union, overload

from everbeat import schedules
from everbeat.graphs import Graph
from everbeat.schedules import Declaration, ScheduleGiven, Span

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)

# Where a decorated function keeps what it was declared with, so that a client can submit the function.
DECLARED = "__everbeat_task__"


@dataclass(frozen=True)
class Task:
    """A function that a worker calls by its name, and how runs of it are submitted unless said otherwise."""

    name: str
    function: Function
    queue: Optional[str] = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    # The function of a node is given only the values that its parameters name: there are always others.
    is_node: bool = False
    # The configuration of a flow names the task, too; the function need not be told.
    is_flow: bool = False


class App:
    """Tasks, graphs and flows that a worker performs.

    ::

        app = everbeat.App()

        @app.task
        def resize(ctx, path, width=800):
            ...

    A plain function runs in a thread of its own, an async function in the worker's event loop; what a
    generator or an async generator yields is streamed.
    """

    def __init__(self) -> None:
        self._tasks: Dict[str, Task] = {}
        self._graphs: Dict[str, Graph] = {}
        self._flows: Dict[str, Declaration] = {}
        self._schedules: Dict[str, Declaration] = {}

    @overload
    def task(self, function: F, /) -> F: ...

    @overload
    def task(
        self,
        name: Optional[str] = None,
        /,
        *,
        queue: Optional[str] = None,
        policy: Optional[Mapping[str, Any]] = None,
        schedule: Optional[ScheduleGiven] = None,
    ) -> Callable[[F], F]: ...

    def task(
        self,
        name: Union[F, str, None] = None,
        /,
        *,
        queue: Optional[str] = None,
        policy: Optional[Mapping[str, Any]] = None,
        schedule: Optional[ScheduleGiven] = None,
    ) -> Union[F, Callable[[F], F]]:
        """Declares a task: ``@app.task`` under the function's name, ``@app.task("name")`` under another.

        The function is called as ``f(ctx, **input)`` if the input is an object, as ``f(ctx)`` if there is
        none, and as ``f(ctx, input)`` otherwise. It stays an ordinary function.

        ``queue`` and ``policy`` are used by ``client.runs.submit(function)``, unless that call says
        otherwise; ``policy`` is a dictionary like ``{"max_attempts": 5, "deadline": "10m"}``.

        ``schedule`` has the task performed again and again: an `everbeat.Schedule`, a dictionary of its fields like
        ``{"every": "15m"}``, or a list of them, each with a name of its own.
        """
        settings = (queue, dict(policy or {}))
        if callable(name):
            return self._declare(name, Task(name.__name__, name, *settings))

        def declare(function: F) -> F:
            task = Task(name or function.__name__, function, *settings)
            declared = [] if schedule is None else schedules.of_task(task.name, schedule, *settings)
            self._declare(function, task)
            for each in declared:
                _add("schedule", self._schedules, each)
            return function

        return declare

    @overload
    def flow(self, function: F, /) -> F: ...

    @overload
    def flow(
        self,
        name: Optional[str] = None,
        /,
        *,
        every: Optional[Span] = None,
        cron: Optional[str] = None,
        tz: Optional[str] = None,
        run_interval: Optional[int] = None,
        overlap: Optional[str] = None,
        catch_up: Optional[str] = None,
        late_after: Optional[Span] = None,
        queue: Optional[str] = None,
        priority: Optional[int] = None,
        policy: Optional[Mapping[str, Any]] = None,
        concurrency: Optional[int] = None,
        group: Optional[str] = None,
        after: Sequence[Union[str, Function]] = (),
        description: Optional[str] = None,
        configuration: Optional[Mapping[str, Any]] = None,
    ) -> Callable[[F], F]: ...

    def flow(
        self,
        name: Union[F, str, None] = None,
        /,
        *,
        every: Optional[Span] = None,
        cron: Optional[str] = None,
        tz: Optional[str] = None,
        run_interval: Optional[int] = None,
        overlap: Optional[str] = None,
        catch_up: Optional[str] = None,
        late_after: Optional[Span] = None,
        queue: Optional[str] = None,
        priority: Optional[int] = None,
        policy: Optional[Mapping[str, Any]] = None,
        concurrency: Optional[int] = None,
        group: Optional[str] = None,
        after: Sequence[Union[str, Function]] = (),
        description: Optional[str] = None,
        configuration: Optional[Mapping[str, Any]] = None,
    ) -> Union[F, Callable[[F], F]]:
        """Declares a flow whose body is the function, and the task of the same name that performs it.

        ::

            @app.flow("products", every="15m", configuration={"table": "products"})
            def products(ctx, table):
                last = ctx.resume(ctx.cursor)
                ...
                ctx.heartbeat(checkpoint=last)

        The function is called as ``f(ctx, **configuration)``. ``ctx.due_at``, ``ctx.cause``, ``ctx.cursor``,
        ``ctx.from_`` and ``ctx.to`` say what is asked of it. The last checkpoint of a run is the cursor of the next.

        ``every`` is an interval (``run_interval`` the same in whole seconds), ``cron`` an expression by the clock of
        the zone ``tz``; ``after`` names flows that have to succeed first. Without any of them the flow runs when
        somebody asks. The documentation of schedules says what the others mean.

        A worker tells the server about the flows of its app. What the code said before changes nothing, so that what
        somebody has changed at the server since stands, until the code says something else. Whether a flow is enabled
        is decided at the server alone.
        """

        def declare(function: F, name: str) -> F:
            declared = schedules.of_flow(
                name,
                function,
                every=every,
                cron=cron,
                tz=tz,
                run_interval=run_interval,
                overlap=overlap,
                catch_up=catch_up,
                late_after=late_after,
                queue=queue,
                priority=priority,
                policy=policy or {},
                concurrency=concurrency,
                group=group,
                after=after,
                description=description,
                configuration=configuration,
            )
            self._declare(function, Task(name, function, queue, dict(policy or {}), is_flow=True))
            _add("flow", self._flows, declared)
            return function

        if callable(name):
            return declare(name, name.__name__)
        return lambda function: declare(function, name or function.__name__)

    def graph(
        self,
        name: str,
        version: Union[str, int] = 1,
        *,
        singleton: bool = False,
        on_save: Union[str, Function, None] = None,
    ) -> Graph:
        """Declares a graph. Its nodes follow with ``@graph.compute(...)`` and so on; see `Graph`."""
        if name in self._graphs:
            raise ValueError(f"graph {name!r} is declared twice")
        graph = Graph(name, str(version), singleton=singleton, on_save=on_save, declare=self._declare_node)
        self._graphs[name] = graph
        return graph

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The declared tasks by name, those of nodes among them."""
        return self._tasks

    @property
    def graphs(self) -> List[Graph]:
        """The declared graphs."""
        return list(self._graphs.values())

    @property
    def flows(self) -> List[Declaration]:
        """The declared flows."""
        return list(self._flows.values())

    @property
    def schedules(self) -> List[Declaration]:
        """The schedules of the declared tasks."""
        return list(self._schedules.values())

    def _declare_node(self, name: str, function: F) -> F:
        return self._declare(function, Task(name, function, is_node=True))

    def _declare(self, function: F, task: Task) -> F:
        if task.name in self._tasks:
            raise ValueError(f"task {task.name!r} is declared twice")
        if not _takes_context(function):
            raise TypeError(f"task {task.name!r} must take the context as its first argument: def f(ctx, ...)")
        self._tasks[task.name] = task
        # A method or a partial has no attributes of its own; its task is submitted by name.
        if inspect.isfunction(function) and not hasattr(function, DECLARED):
            setattr(function, DECLARED, task)
        return function


def _add(kind: str, known: Dict[str, Declaration], declared: Declaration) -> None:
    if declared.name in known:
        raise ValueError(f"{kind} {declared.name!r} is declared twice")
    known[declared.name] = declared


def name_of(task: Union[str, Function]) -> str:
    """The name of a task that is given by its name or as the declared function."""
    if isinstance(task, str):
        return task
    declared = getattr(task, DECLARED, None)
    if not isinstance(declared, Task):
        raise TypeError(f"{task!r} is not a task: declare it with @app.task, or give its name")
    return declared.name


def _takes_context(function: Function) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True  # A builtin without a signature: only its call can tell.
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in positional for parameter in parameters)
