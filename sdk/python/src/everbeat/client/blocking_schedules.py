"""Flows and schedules without an event loop. `everbeat.client.aio_schedules` does the work."""

from typing import Any, Iterator, List, Optional

from everbeat.client.aio_schedules import AsyncFlows, AsyncSchedules, Definition
from everbeat.client.core import Core
from everbeat.client.records import Flow, FlowRun, Schedule
from everbeat.client.transport import finish, iterate


class Schedules:
    """Tasks that are due again and again."""

    def __init__(self, core: Core) -> None:
        self._awaited = AsyncSchedules(core)

    def get(self, name: str) -> Schedule:
        return finish(self._awaited.get(name))

    def put(
        self,
        name: str,
        definition: Definition,
        *,
        version: Optional[int] = None,
        enabled: Optional[bool] = None,
        accept_unknown: Optional[bool] = None,
    ) -> Schedule:
        """Writes a definition; another one of the same name is replaced, and what waits follows it.

        ``version`` is that of the definition to be replaced: `everbeat.Problem` with the status 412 if there is
        another one by now. ``accept_unknown`` accepts a task that no worker has offered yet.
        """
        said = self._awaited.put(name, definition, version=version, enabled=enabled, accept_unknown=accept_unknown)
        return finish(said)

    def delete(self, name: str, *, version: Optional[int] = None) -> None:
        """Forgets it, and what waits. Its runs stay. One that code declares is made again when a worker connects."""
        finish(self._awaited.delete(name, version=version))

    def trigger(self, name: str) -> FlowRun:
        """Asks for a run now. It waits for its turn if it cannot begin at once.

        Sent once only: a second one would ask for another run.
        """
        return finish(self._awaited.trigger(name))

    def enable(self, name: str) -> Schedule:
        """Switches it on. What was missed while it was off is not made up for."""
        return finish(self._awaited.enable(name))

    def disable(self, name: str) -> Schedule:
        """Switches it off. Runs that have begun go on."""
        return finish(self._awaited.disable(name))

    def next(self, name: str, count: Optional[int] = None) -> List[str]:
        """When it is due next, so many times."""
        return finish(self._awaited.next(name, count))

    def runs(self, name: str, *, page_size: Optional[int] = None) -> Iterator[FlowRun]:
        """Its runs, newest first; what waits for its turn comes before them."""
        return iterate(self._awaited.runs(name, page_size=page_size))

    def list(self, *, page_size: Optional[int] = None) -> Iterator[Schedule]:
        """All of them, by name."""
        return iterate(self._awaited.list(page_size=page_size))


class Flows:
    """Data from a source to a sink, or tasks that are handed a configuration."""

    def __init__(self, core: Core) -> None:
        self._awaited = AsyncFlows(core)

    def get(self, name: str) -> Flow:
        return finish(self._awaited.get(name))

    def put(
        self,
        name: str,
        definition: Definition,
        *,
        version: Optional[int] = None,
        enabled: Optional[bool] = None,
        accept_unknown: Optional[bool] = None,
    ) -> Flow:
        """Writes a definition; another one of the same name is replaced, and what waits follows it.

        ``version`` is that of the definition to be replaced: `everbeat.Problem` with the status 412 if there is
        another one by now. ``accept_unknown`` accepts a task that no worker has offered yet.
        """
        said = self._awaited.put(name, definition, version=version, enabled=enabled, accept_unknown=accept_unknown)
        return finish(said)

    def delete(self, name: str, *, version: Optional[int] = None) -> None:
        """Forgets it, and what waits. Its runs stay. One that code declares is made again when a worker connects."""
        finish(self._awaited.delete(name, version=version))

    def trigger(self, name: str, *, cursor: Any = None, from_: Any = None, to: Any = None) -> FlowRun:
        """Asks for a run now, of all that is new or of a part of the source.

        It goes on after ``cursor``, in place of where the last run left off; or it takes what lies between ``from_``
        and ``to``, which leaves the flow's cursor where it was. Sent once only: a second one would ask for another
        run.
        """
        return finish(self._awaited.trigger(name, cursor=cursor, from_=from_, to=to))

    def enable(self, name: str) -> Flow:
        """Switches it on. What was missed while it was off is not made up for."""
        return finish(self._awaited.enable(name))

    def disable(self, name: str) -> Flow:
        """Switches it off. Runs that have begun go on."""
        return finish(self._awaited.disable(name))

    def next(self, name: str, count: Optional[int] = None) -> List[str]:
        """When it is due next, so many times."""
        return finish(self._awaited.next(name, count))

    def runs(self, name: str, *, page_size: Optional[int] = None) -> Iterator[FlowRun]:
        """Its runs, newest first; what waits for its turn comes before them."""
        return iterate(self._awaited.runs(name, page_size=page_size))

    def list(self, *, page_size: Optional[int] = None) -> Iterator[Flow]:
        """All of them, by name."""
        return iterate(self._awaited.list(page_size=page_size))
