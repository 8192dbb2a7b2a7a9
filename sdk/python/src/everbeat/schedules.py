"""Schedules and flows declared in Python."""

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from everbeat.values import encode

Function = Callable[..., Any]
# A text like "15m", or seconds.
Span = Union[str, int, float, timedelta]

# The task of the server that performs flows from a source to a sink.
_TAKEN = "flow"


@dataclass(frozen=True)
class Schedule:
    """When a task is due, and what it is given then.

    ::

        @app.task(schedule=everbeat.Schedule(cron="30 2 * * *", tz="Europe/Berlin", input={"full": True}))
        def backup(ctx, full=False): ...

    ``every`` is an interval, ``cron`` an expression by the clock of the zone ``tz`` (UTC). Without either the
    schedule is due only when somebody asks. ``name`` is that of the task unless given. The other fields are those
    of ``PUT /api/v1/schedules/{name}``; see the documentation of schedules.
    """

    every: Optional[Span] = None
    cron: Optional[str] = None
    tz: Optional[str] = None
    input: Any = None
    name: Optional[str] = None
    description: Optional[str] = None
    overlap: Optional[str] = None
    catch_up: Optional[str] = None
    late_after: Optional[Span] = None
    queue: Optional[str] = None
    priority: Optional[int] = None
    policy: Optional[Mapping[str, Any]] = None
    concurrency: Optional[int] = None
    group: Optional[str] = None
    after: Sequence[Union[str, Function]] = ()


# What `@app.task` takes: one schedule, or several with names of their own.
ScheduleGiven = Union[Schedule, Mapping[str, Any], Sequence[Union[Schedule, Mapping[str, Any]]]]


class Declaration:
    """A schedule or a flow as the code declares it. A worker tells the server about those of its app."""

    def __init__(self, kind: str, name: str, fields: Mapping[str, Any]) -> None:
        self.name = name
        self._fields = dict(fields)
        # What is no JSON shows here, and not when a worker connects.
        encode(self._fields, f"{kind} {name!r}")

    def definition(self) -> Dict[str, Any]:
        """Its JSON form: what ``PUT`` takes, and the name."""
        return {"name": self.name, **self._fields}


def of_task(task: str, given: ScheduleGiven, queue: Optional[str], policy: Mapping[str, Any]) -> List[Declaration]:
    """The schedules of a task. Its queue and its policy are theirs unless they say otherwise."""
    several = [given] if isinstance(given, (Schedule, Mapping)) else list(given)
    return [_of_task(task, each, queue, policy) for each in several]


def _of_task(
    task: str, given: Union[Schedule, Mapping[str, Any]], queue: Optional[str], policy: Mapping[str, Any]
) -> Declaration:
    if isinstance(given, Schedule):
        schedule = given
    elif isinstance(given, Mapping):
        try:
            schedule = Schedule(**given)
        except TypeError as error:
            raise TypeError(f"the schedule of task {task!r} cannot be read: {error}") from None
    else:
        raise TypeError(f"the schedule of task {task!r} is of type {type(given).__name__}: give everbeat.Schedule(...)")
    name = schedule.name or task
    fields: Dict[str, Any] = {"task": task}
    if schedule.input is not None:
        fields["input"] = schedule.input
    fields.update(
        _common(
            f"schedule {name!r}",
            rhythm={"every": schedule.every, "cron": schedule.cron},
            tz=schedule.tz,
            description=schedule.description,
            overlap=schedule.overlap,
            catch_up=schedule.catch_up,
            late_after=schedule.late_after,
            queue=schedule.queue or queue,
            priority=schedule.priority,
            policy={**policy, **(schedule.policy or {})},
            concurrency=schedule.concurrency,
            group=schedule.group,
            after=schedule.after,
        )
    )
    return Declaration("schedule", name, fields)


def of_flow(
    name: str,
    function: Function,
    *,
    every: Optional[Span],
    cron: Optional[str],
    run_interval: Optional[int],
    configuration: Optional[Mapping[str, Any]],
    **said: Any,
) -> Declaration:
    """A flow whose work is the task of the same name."""
    what = f"flow {name!r}"
    if name == _TAKEN:
        raise ValueError(f"{what} would have the name of a task of the server itself: give it another one")
    handed = dict(configuration or {})
    if "task" in handed:
        raise ValueError(f"the configuration of {what} has a field 'task', which names the flow's own function")
    _check_call(what, function, handed)
    rhythm = {"every": every, "cron": cron, "run_interval": run_interval}
    fields = {"configuration": {**handed, "task": name}, **_common(what, rhythm=rhythm, **said)}
    return Declaration("flow", name, fields)


def _common(
    what: str,
    *,
    rhythm: Mapping[str, Any],
    tz: Optional[str],
    late_after: Optional[Span],
    after: Sequence[Union[str, Function]],
    policy: Mapping[str, Any],
    **said: Any,
) -> Dict[str, Any]:
    """The fields that schedules and flows have in common, those that say something."""
    fields = {name: value for name, value in said.items() if value is not None}
    fields.update(_times(what, rhythm, tz))
    if late_after is not None:
        fields["late_after"] = _span(late_after)
    if policy:
        fields["policy"] = dict(policy)
    if isinstance(after, str):
        raise TypeError(f"{what} has after={after!r}: give a list of names")
    if after:
        fields["after"] = [_name(each) for each in after]
    return fields


def of_tick(what: str, every: Optional[Span], cron: Optional[str], tz: Optional[str]) -> Mapping[str, Any]:
    """The schedule of a graph's tick."""
    times = _times(what, {"every": every, "cron": cron}, tz)
    if not times:
        raise ValueError(f"{what} has no times: give every or cron")
    schedule: Mapping[str, Any] = times["schedule"]
    return schedule


def _times(what: str, rhythm: Mapping[str, Any], tz: Optional[str]) -> Dict[str, Any]:
    """The field that says when something is due; none if nothing does."""
    given = [name for name, value in rhythm.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{what} has {' and '.join(given)}: give one of them")
    if tz is not None and given != ["cron"]:
        raise ValueError(f"{what} has tz={tz!r}, which belongs to cron")
    if given == ["every"]:
        return {"schedule": {"every": _span(rhythm["every"])}}
    if given == ["cron"]:
        return {"schedule": {"cron": rhythm["cron"], **({"tz": tz} if tz is not None else {})}}
    return {name: rhythm[name] for name in given}


def _span(span: Span) -> Union[str, int, float]:
    return span.total_seconds() if isinstance(span, timedelta) else span


def _name(task: Union[str, Function]) -> str:
    from everbeat.app import name_of  # `app` imports this module.

    return name_of(task)


def _check_call(what: str, function: Function, configuration: Mapping[str, Any]) -> None:
    """A function that cannot be called with the configuration should not be found out at the first due time."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # A builtin without a signature: only its call can tell.
    try:
        signature.bind(None, **configuration)
    except TypeError as error:
        raise TypeError(f"{what} cannot be called with its configuration: {error}") from None
