"""Requests with patience: what both clients have in common."""

import json
import os
import random
import time
import uuid
from typing import Any, AsyncGenerator, Dict, Iterable, List, Mapping, Optional, Tuple, Type
from urllib.parse import quote, urlencode

from everbeat._version import __version__
from everbeat.client.errors import Problem, Unreachable, WaitTimedOut, problem
from everbeat.client.records import Event, Item, R
from everbeat.client.transport import Broken, Stream, Transport
from everbeat.values import encode

DEFAULT_URL = "http://127.0.0.1:7117"

_ANSWER_SECONDS = 30.0
# A wait is asked for in pieces, so that a connection that died unnoticed is noticed.
_POLL_SECONDS = 60.0
# How long those who wait or follow bear with a server that is away: it may be restarted, or upgraded.
_AWAY_SECONDS = 600.0
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
# The server says something on a stream of events at least so often.
_SILENCE_SECONDS = 60.0

# Of what a run streams, in one answer.
_MOST_ITEMS = 1000

_PASSING = (429, 502, 503, 504)

Query = Mapping[str, Any]


class Core:
    """Sends requests, again if that is safe, and makes exceptions of what cannot be helped."""

    def __init__(self, transport: Transport, url: str, token: Optional[str], patience: float) -> None:
        self._transport = transport
        self._url = url
        self._token = token
        self._patience = patience

    async def get(self, path: str, query: Optional[Query] = None) -> Any:
        return await self._ask("GET", path, query)

    async def put(self, path: str, body: Any, headers: Optional[Dict[str, str]] = None) -> Any:
        return await self._ask("PUT", path, body=body, headers=headers)

    async def delete(self, path: str, query: Optional[Query] = None, headers: Optional[Dict[str, str]] = None) -> Any:
        return await self._ask("DELETE", path, query, headers=headers)

    async def create(self, path: str, body: Any, idempotency_key: Optional[str]) -> Any:
        """A POST that creates. Its key lets it be sent again without creating twice."""
        key = idempotency_key or uuid.uuid4().hex
        return await self._ask("POST", path, body=body, headers={"idempotency-key": key})

    async def act(self, path: str, repeatable: bool, body: Any = None) -> Any:
        """A POST that does something to what exists."""
        return await self._ask("POST", path, body=body, repeatable=repeatable)

    async def wait(self, path: str, query: Query, timeout: Optional[float], what: str) -> Any:
        """Asks until there is an answer other than that there is none yet. Outlives restarts of the server."""
        patience = Patience(_AWAY_SECONDS)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL_SECONDS if until is None else min(_POLL_SECONDS, max(0.0, until - time.monotonic()))
            try:
                asked = {**query, "timeout": f"{int(left * 1000)}ms"}
                return await self._once("GET", path, asked, None, {}, left + _ANSWER_SECONDS)
            except Problem as found:
                if found.kind == "wait-timed-out":
                    if until is not None and time.monotonic() >= until:
                        raise WaitTimedOut(found.detail or f"{what}: not within {timeout} s") from None
                    patience.renew()
                elif found.status in _PASSING:
                    await self._pause(patience, found, until)
                else:
                    raise
            except Broken as broken:
                await self._pause(patience, broken, until)
            if until is not None and time.monotonic() >= until:
                raise WaitTimedOut(f"{what}: not within {timeout} s")

    async def pages(self, path: str, query: Query, kind: Type[R]) -> AsyncGenerator[R, None]:
        """All items of a list, page by page."""
        cursor: Optional[str] = None
        while True:
            page = await self.get(path, {**query, "cursor": cursor})
            for item in page["items"]:
                yield kind(item)
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def text(self, path: str, query: Query) -> str:
        patience = Patience(self._patience)
        while True:
            try:
                stream = await self._open("GET", path, query, None, {}, _ANSWER_SECONDS)
                return (await _read_all(stream)).decode("utf-8", "replace")
            except Broken as broken:
                await self._pause(patience, broken)

    async def lines(self, path: str, query: Query) -> AsyncGenerator[str, None]:
        """Lines of an output that grows, until it ends. Goes on where it was when the connection breaks."""
        patience = Patience(_AWAY_SECONDS)
        offset, rest = 0, b""
        while True:
            stream = None
            try:
                asked = {**query, "follow": True, "offset": offset}
                stream = await self._open("GET", path, asked, None, {}, _AWAY_SECONDS)
                begins = int(stream.headers.get("everbeat-log-offset", offset))
                if begins > offset:
                    rest = b""  # What lay between was rotated away.
                offset = begins
                while True:
                    piece = await stream.read()
                    if not piece:
                        break
                    patience.renew()
                    offset += len(piece)
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        yield line.decode("utf-8", "replace")
                if rest:
                    yield rest.decode("utf-8", "replace")
                return
            except Broken as broken:
                await self._pause(patience, broken)
            except Problem as found:
                if found.status not in _PASSING:
                    raise
                await self._pause(patience, found)
            finally:
                if stream is not None:
                    await stream.close()

    async def items(self, path: str, after: int) -> AsyncGenerator[Item, None]:
        """What a run streams, until it is finished. Goes on after the last item when the connection breaks."""
        patience = Patience(_AWAY_SECONDS)
        while True:
            try:
                asked = {"after": after, "limit": _MOST_ITEMS, "wait": f"{int(_POLL_SECONDS * 1000)}ms"}
                page = await self._once("GET", path, asked, None, {}, _POLL_SECONDS + _ANSWER_SECONDS)
            except Broken as broken:
                await self._pause(patience, broken)
                continue
            except Problem as found:
                if found.status not in _PASSING:
                    raise
                await self._pause(patience, found)
                continue
            patience.renew()
            for item in page["items"]:
                after = item["seq"]
                yield Item(item)
            if page["finished"]:
                return
            if not page["items"]:
                after = max(after, page["last"])

    async def events(self, query: Query, after: Optional[int], follow: bool) -> AsyncGenerator[Event, None]:
        """Server-sent events, taken up after the last one when the connection breaks."""
        patience = Patience(_AWAY_SECONDS)
        last = after
        while True:
            stream = None
            try:
                asked = {**query, "follow": follow, "after": last}
                accept = {"accept": "text/event-stream"}
                stream = await self._open("GET", "/api/v1/events", asked, None, accept, _SILENCE_SECONDS)
                buffer = b""
                while True:
                    piece = await stream.read()
                    if not piece:
                        break
                    patience.renew()
                    *blocks, buffer = (buffer + piece).replace(b"\r\n", b"\n").split(b"\n\n")
                    for event in filter(None, map(_event, blocks)):
                        last = event.id
                        yield event
                if not follow:
                    return
                await self._pause(patience, Broken(ConnectionError("the stream ended"), was_sent=True))
            except Broken as broken:
                await self._pause(patience, broken)
            except Problem as found:
                if found.status not in _PASSING:
                    raise
                await self._pause(patience, found)
            finally:
                if stream is not None:
                    await stream.close()

    async def _ask(
        self,
        method: str,
        path: str,
        query: Optional[Query] = None,
        body: Any = None,
        headers: Optional[Dict[str, str]] = None,
        repeatable: bool = True,
    ) -> Any:
        patience = Patience(self._patience)
        while True:
            try:
                return await self._once(method, path, query or {}, body, headers or {}, _ANSWER_SECONDS)
            except Problem as found:
                # Whoever sends too much is stopped before anything is done.
                if found.status not in (_PASSING if repeatable else (429,)):
                    raise
                await self._pause(patience, found)
            except Broken as broken:
                if broken.was_sent and not repeatable:
                    raise Unreachable(f"{self._url} broke off; whether it has done it is not known: {broken}") from None
                await self._pause(patience, broken)

    async def _once(
        self, method: str, path: str, query: Query, body: Any, headers: Dict[str, str], timeout: float
    ) -> Any:
        stream = await self._open(method, path, query, body, headers, timeout)
        data = await _read_all(stream)
        try:
            return json.loads(data) if data else None
        except ValueError as error:
            raise Broken(error, was_sent=True) from error

    async def _open(
        self, method: str, path: str, query: Query, body: Any, headers: Dict[str, str], timeout: float
    ) -> Stream:
        """An answer that is good; any other is raised as a `Problem`."""
        said = {"accept": "application/json", "user-agent": f"everbeat-python/{__version__}", **headers}
        if self._token:
            said["authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            said["content-type"] = "application/json"
            data = encode(body, "the request").encode("utf-8")
        elif method == "POST":
            data = b""
        stream = await self._transport.open(method, path + _query(query), said, data, timeout)
        if stream.status >= 300:
            answer = await _read_all(stream)
            raise _problem(stream, answer)
        return stream

    async def _pause(self, patience: "Patience", why: Exception, until: Optional[float] = None) -> None:
        seconds = patience.next()
        if seconds is None:
            if isinstance(why, Problem):
                raise why
            raise Unreachable(f"{self._url} cannot be reached: {why}") from why
        if isinstance(why, Problem):
            seconds = max(seconds, min(float(why.json.get("retry_after", 0)), _LONGEST_PAUSE_SECONDS))
        if until is not None:
            seconds = min(seconds, max(0.0, until - time.monotonic()))
        await self._transport.sleep(seconds)


class Patience:
    """Pauses that grow, until a time is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._until = time.monotonic() + self._seconds
        self._pause = _SHORTEST_PAUSE_SECONDS

    def next(self) -> Optional[float]:
        """How long to pause; ``None`` when patience is at its end."""
        if time.monotonic() >= self._until:
            return None
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
        return pause


def settings(url: Optional[str], token: Optional[str]) -> Tuple[str, Optional[str]]:
    """What was given, else what the environment says."""
    return url or os.environ.get("EVERBEAT_URL") or DEFAULT_URL, token or os.environ.get("EVERBEAT_TOKEN") or None


def path(*parts: str) -> str:
    """A path of the API, whatever its parts hold."""
    return "/api/v1/" + "/".join(quote(part, safe="") for part in parts)


def given(**fields: Any) -> Dict[str, Any]:
    """Those fields that say something."""
    return {name: value for name, value in fields.items() if value is not None}


def _query(query: Query) -> str:
    pairs = []
    for name, value in query.items():
        several: Iterable[Any] = value if isinstance(value, (list, tuple)) else [value]
        for each in several:
            if each is not None:
                pairs.append((name, str(each).lower() if isinstance(each, bool) else str(each)))
    return "?" + urlencode(pairs) if pairs else ""


async def _read_all(stream: Stream) -> bytes:
    try:
        pieces: List[bytes] = []
        while True:
            piece = await stream.read()
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    finally:
        await stream.close()


def _problem(stream: Stream, answer: bytes) -> Problem:
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        found = {"detail": answer.decode("utf-8", "replace")[:500]}
    wait = stream.headers.get("retry-after", "")
    if wait.isdigit():
        found["retry_after"] = int(wait)
    return problem(stream.status, found)


def _event(block: bytes) -> Optional[Event]:
    """One event; ``None`` for comments and orders to the browser."""
    fields: Dict[str, str] = {}
    for line in block.decode("utf-8", "replace").split("\n"):
        name, _, value = line.partition(":")
        if name:
            value = value[1:] if value.startswith(" ") else value
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    if "data" not in fields:
        return None
    try:
        data = json.loads(fields["data"])
    except ValueError:
        data = None
    if not isinstance(data, dict):
        data = {"detail": data}
    event = {"at": None, "subject": None, "attempt": None, "detail": None, "kind": fields.get("event", ""), **data}
    event["id"] = int(fields["id"]) if fields.get("id", "").isdigit() else data.get("id")
    return Event(event)
