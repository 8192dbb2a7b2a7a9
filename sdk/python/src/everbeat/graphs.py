"""Graphs declared in Python."""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar, Union

from everbeat.gates import GateLike, to_json
from everbeat.schedules import Span, of_tick

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class Graph:
    """What depends on what: a durable graph whose nodes compute themselves.

    ::

        graph = app.graph("order", version=1)
        graph.input("price")
        graph.input("count")

        @graph.compute("total", gate=["price", "count"])
        def total(ctx, price, count):
            return price * count

    The function of a node is a task named ``graph.node``. It is called with those values of the execution
    that its parameters name, or with all of them if it takes ``**values``; a value that is not set is left
    to the parameter's default. ``ctx.args`` holds the node's ``args``. Options are fields of a policy
    (``max_attempts=5``, ``deadline="30s"``), and what the documentation of graphs says besides.

    A worker tells the server about the graphs of its app. `Graph.definition` is what it says.
    """

    def __init__(
        self,
        name: str,
        version: str,
        *,
        singleton: bool = False,
        on_save: Union[str, Function, None] = None,
        declare: Optional[Callable[[str, Any], Any]] = None,
    ) -> None:
        self.name = name
        self.version = version
        self._singleton = singleton
        self._on_save = on_save
        self._nodes: Dict[str, Dict[str, Any]] = {}
        self._declare = declare

    def definition(self) -> Dict[str, Any]:
        """The graph in its JSON form, as ``POST /api/v1/graphs`` takes it."""
        definition: Dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "nodes": list(self._nodes.values()),
        }
        if self._singleton:
            definition["singleton"] = True
        if self._on_save is not None:
            definition["on_save"] = _task_name(self._on_save)
        return definition

    def input(self, *names: str, **options: Any) -> None:
        """Values that are set from outside."""
        for name in names:
            self.node(name, "input", options=options)

    def compute(
        self, name: Optional[str] = None, *, gate: GateLike = (), args: Any = None, **options: Any
    ) -> Callable[[F], F]:
        """A value that the function gives."""
        return self._function("compute", name, gate, args, None, options)

    def mutate(
        self,
        name: Optional[str] = None,
        *,
        mutates: Union[str, Sequence[str]],
        gate: GateLike = (),
        args: Any = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """A function that writes other nodes: one, which takes the result, or several by name."""
        return self._function("mutate", name, gate, args, mutates, options)

    def tick_once(
        self, name: Optional[str] = None, *, gate: GateLike = (), args: Any = None, **options: Any
    ) -> Callable[[F], F]:
        """A time that the function gives: epoch seconds, an RFC 3339 text, or ``None`` to pause."""
        return self._function("tick_once", name, gate, args, None, options)

    def tick_recurring(
        self, name: Optional[str] = None, *, gate: GateLike = (), args: Any = None, **options: Any
    ) -> Callable[[F], F]:
        """As `tick_once`, and asked again each time it was due."""
        return self._function("tick_recurring", name, gate, args, None, options)

    def tick(
        self,
        name: str,
        *,
        gate: GateLike = (),
        every: Optional[Span] = None,
        cron: Optional[str] = None,
        tz: Optional[str] = None,
        recurring: bool = True,
        **options: Any,
    ) -> None:
        """A tick that gets its times from a schedule, and needs no function.

        ``graph.tick("morning", gate=["order"], cron="0 9 * * *", tz="Europe/Berlin")``

        ``every`` counts from when the gate opened. ``recurring=False`` has the tick due once.
        """
        schedule = of_tick(f"tick {name!r} of graph {self.name!r}", every, cron, tz)
        self.node(name, "tick_recurring" if recurring else "tick_once", gate=gate, schedule=schedule, options=options)

    def loop(
        self,
        name: Optional[str] = None,
        *,
        gate: GateLike = (),
        args: Any = None,
        max_iterations: Optional[int] = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """A function that is called until it gives ``{"done": value}``.

        With ``{"continue": state}`` it asks for another iteration, which finds the state under the name of
        the node.
        """
        if max_iterations is not None:
            options["max_iterations"] = max_iterations
        return self._function("loop", name, gate, args, None, options)

    def historian(self, name: str, *, gate: GateLike, **options: Any) -> None:
        """A list of what the nodes of its gate were, newest first; ``max_entries=None`` keeps all."""
        self.node(name, "historian", gate=gate, options=options)

    def archive(self, name: str, *, gate: GateLike, **options: Any) -> None:
        """Archives the execution when its gate opens."""
        self.node(name, "archive", gate=gate, options=options)

    def node(
        self,
        name: str,
        kind: str,
        *,
        gate: GateLike = (),
        task: Union[str, Function, None] = None,
        command: Optional[Sequence[str]] = None,
        args: Any = None,
        schedule: Optional[Mapping[str, Any]] = None,
        mutates: Union[str, Sequence[str], None] = None,
        options: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """A node of any kind, computed by a task that is named, or by a command; a tick also by a schedule.

        ``graph.node("total", "compute", gate=["a", "b"], task="jq", args={"program": ".a + .b"})``
        """
        if name in self._nodes:
            raise ValueError(f"node {name!r} of graph {self.name!r} is declared twice")
        node: Dict[str, Any] = {"name": name, "kind": kind}
        opened_by = to_json(gate)
        if opened_by:
            node["gate"] = opened_by
        if task is not None:
            node["task"] = _task_name(task)
        if command is not None:
            node["command"] = list(command)
        if args is not None:
            node["args"] = args
        if schedule is not None:
            node["schedule"] = dict(schedule)
        if mutates is not None:
            node["mutates"] = mutates if isinstance(mutates, str) else list(mutates)
        said = {key: _task_name(value) if key == "on_save" else value for key, value in (options or {}).items()}
        if said:
            node["options"] = said
        self._nodes[name] = node

    def _function(
        self,
        kind: str,
        name: Optional[str],
        gate: GateLike,
        args: Any,
        mutates: Union[str, Sequence[str], None],
        options: Dict[str, Any],
    ) -> Callable[[F], F]:
        def declare(function: F) -> F:
            node = name or function.__name__
            task = f"{self.name}.{node}"
            self.node(node, kind, gate=gate, task=task, args=args, mutates=mutates, options=options)
            if self._declare is not None:
                self._declare(task, function)
            return function

        return declare

    @property
    def nodes(self) -> List[str]:
        """The names of the nodes, in the order of their declaration."""
        return list(self._nodes)


def _task_name(task: Union[str, Function]) -> str:
    from everbeat.app import name_of  # `app` imports this module.

    return name_of(task)
