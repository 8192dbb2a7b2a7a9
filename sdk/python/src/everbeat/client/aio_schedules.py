"""Flows and schedules, for event loops. `everbeat.client.blocking_schedules` has the same without them."""

from typing import Any, AsyncIterator, Dict, Generic, List, Mapping, Optional, Type, TypeVar, Union

from everbeat.client.core import Core, given, path
from everbeat.client.records import Flow, FlowRun, Schedule
from everbeat.schedules import Declaration

S = TypeVar("S", Flow, Schedule)
# A definition: a dictionary of its fields, or what an app has declared.
Definition = Union[Mapping[str, Any], Declaration]


class _Scheduled(Generic[S]):
    """What flows and schedules have in common."""

    _noun: str
    _kind: Type[S]

    def __init__(self, core: Core) -> None:
        self._core = core

    async def get(self, name: str) -> S:
        return self._kind(await self._core.get(path(self._noun, name)))

    async def put(
        self,
        name: str,
        definition: Definition,
        *,
        version: Optional[int] = None,
        enabled: Optional[bool] = None,
        accept_unknown: Optional[bool] = None,
    ) -> S:
        """Writes a definition; another one of the same name is replaced, and what waits follows it.

        ``version`` is that of the definition to be replaced: `everbeat.Problem` with the status 412 if there is
        another one by now. ``accept_unknown`` accepts a task that no worker has offered yet.
        """
        fields = definition.definition() if isinstance(definition, Declaration) else dict(definition)
        body = {**fields, **given(enabled=enabled, accept_unknown=accept_unknown)}
        return self._kind(await self._core.put(path(self._noun, name), body, _condition(version)))

    async def delete(self, name: str, *, version: Optional[int] = None) -> None:
        """Forgets it, and what waits. Its runs stay. One that code declares is made again when a worker connects."""
        await self._core.delete(path(self._noun, name), headers=_condition(version))

    async def enable(self, name: str) -> S:
        """Switches it on. What was missed while it was off is not made up for."""
        return self._kind(await self._core.act(path(self._noun, name, "enable"), repeatable=True))

    async def disable(self, name: str) -> S:
        """Switches it off. Runs that have begun go on."""
        return self._kind(await self._core.act(path(self._noun, name, "disable"), repeatable=True))

    async def next(self, name: str, count: Optional[int] = None) -> List[str]:
        """When it is due next, so many times."""
        answer = await self._core.get(path(self._noun, name, "next"), given(limit=count))
        return list(answer["items"])

    def runs(self, name: str, *, page_size: Optional[int] = None) -> AsyncIterator[FlowRun]:
        """Its runs, newest first; what waits for its turn comes before them."""
        return self._core.pages(path(self._noun, name, "runs"), given(limit=page_size), FlowRun)

    def list(self, *, page_size: Optional[int] = None) -> AsyncIterator[S]:
        """All of them, by name."""
        return self._core.pages(path(self._noun), given(limit=page_size), self._kind)


class AsyncSchedules(_Scheduled[Schedule]):
    """Tasks that are due again and again."""

    _noun = "schedules"
    _kind = Schedule

    async def trigger(self, name: str) -> FlowRun:
        """Asks for a run now. It waits for its turn if it cannot begin at once.

        Sent once only: a second one would ask for another run.
        """
        return FlowRun(await self._core.act(path(self._noun, name, "trigger"), repeatable=False))


class AsyncFlows(_Scheduled[Flow]):
    """Data from a source to a sink, or tasks that are handed a configuration."""

    _noun = "flows"
    _kind = Flow

    async def trigger(self, name: str, *, cursor: Any = None, from_: Any = None, to: Any = None) -> FlowRun:
        """Asks for a run now, of all that is new or of a part of the source.

        It goes on after ``cursor``, in place of where the last run left off; or it takes what lies between ``from_``
        and ``to``, which leaves the flow's cursor where it was. Sent once only: a second one would ask for another
        run.
        """
        asked = {"cursor": cursor, "from": from_, "to": to}
        body: Dict[str, Any] = {field: value for field, value in asked.items() if value is not None}
        return FlowRun(await self._core.act(path(self._noun, name, "trigger"), repeatable=False, body=body or None))


def _condition(version: Optional[int]) -> Dict[str, str]:
    return {} if version is None else {"if-match": f'"{version}"'}
