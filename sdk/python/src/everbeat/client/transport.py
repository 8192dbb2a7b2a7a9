"""HTTP/1.1 with nothing but the standard library: blocking, and in an event loop.

Both sides offer coroutines, so that all that stands on them is written once. Those of the blocking side never
suspend: `finish` runs them to their end without any loop.
"""

import asyncio
import http.client
import ssl
import time
from typing import (
    Any,
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Dict,
    Iterator,
    Mapping,
    Optional,
    Protocol,
    Tuple,
    TypeVar,
)
from urllib.parse import urlsplit

_CHUNK_BYTES = 64 * 1024
_HEAD_BYTES = 64 * 1024

T = TypeVar("T")


class Broken(Exception):
    """The connection could not be made, or broke off before the answer was complete."""

    def __init__(self, reason: BaseException, was_sent: bool) -> None:
        super().__init__(f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__)
        # Whether the server may have seen the request.
        self.was_sent = was_sent


class Address:
    """Where the server is, from its URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a server: write it like http://127.0.0.1:7117")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.path = parts.path.rstrip("/")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.netloc = parts.netloc.rpartition("@")[2]


class Stream(Protocol):
    """An answer whose body is read piece by piece."""

    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """The next piece; empty at the proper end, and `Broken` at any other."""

    async def close(self) -> None: ...


class Transport(Protocol):
    async def open(
        self, method: str, path: str, headers: Dict[str, str], body: Optional[bytes], timeout: float
    ) -> Stream:
        """Sends a request, and answers once the head of the answer is there. The timeout is of each wait."""

    async def sleep(self, seconds: float) -> None: ...


class Blocking:
    """Over ``http.client``. May be used by many threads at once: each request has a connection of its own."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def open(
        self, method: str, path: str, headers: Dict[str, str], body: Optional[bytes], timeout: float
    ) -> Stream:
        address = self._address
        connection: http.client.HTTPConnection
        if address.tls is not None:
            connection = http.client.HTTPSConnection(address.host, address.port, timeout=timeout, context=address.tls)
        else:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
        was_sent = False
        try:
            connection.connect()
            was_sent = True
            connection.request(method, address.path + path, body, headers)
            return _BlockingStream(connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Broken(error, was_sent) from error

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this side blocks


class _BlockingStream:
    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}

    async def read(self) -> bytes:
        try:
            piece = self._response.read1(_CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Broken(error, was_sent=True) from error
        if not piece and self._response.length:
            raise Broken(ConnectionError("the answer broke off"), was_sent=True)
        return piece

    async def close(self) -> None:
        self._response.close()
        self._connection.close()


class InLoop:
    """Over the streams of asyncio."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def open(
        self, method: str, path: str, headers: Dict[str, str], body: Optional[bytes], timeout: float
    ) -> Stream:
        address = self._address
        try:
            opening = asyncio.open_connection(address.host, address.port, ssl=address.tls, limit=_HEAD_BYTES)
            reader, writer = await asyncio.wait_for(opening, timeout)
        except (OSError, asyncio.TimeoutError) as error:
            raise Broken(error, was_sent=False) from error
        try:
            length = {} if body is None else {"content-length": str(len(body))}
            lines = {"host": address.netloc, "connection": "close", **headers, **length}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(f"{method} {address.path}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b""))
            await asyncio.wait_for(writer.drain(), timeout)
            status, answered = await asyncio.wait_for(_read_head(reader), timeout)
            return _LoopStream(reader, writer, status, answered, timeout)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
            writer.close()
            raise Broken(error, was_sent=True) from error
        except BaseException:
            writer.close()
            raise

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _LoopStream:
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        status: int,
        headers: Mapping[str, str],
        timeout: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout = timeout
        self.status = status
        self.headers = headers
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        # What is left of the body, or of its current chunk; `None`: everything until the end.
        length = headers.get("content-length")
        self._left = 0 if self._chunked else None if length is None else int(length)
        self._ended = False

    async def read(self) -> bytes:
        try:
            return await asyncio.wait_for(self._read(), self._timeout)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
            raise Broken(error, was_sent=True) from error

    async def _read(self) -> bytes:
        if self._ended:
            return b""
        if self._chunked and self._left == 0:
            self._left = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            self._ended = self._left == 0
        if self._ended or self._left == 0:
            return b""
        most = _CHUNK_BYTES if self._left is None else min(self._left, _CHUNK_BYTES)
        piece = await self._reader.read(most)
        if self._left is not None:
            if not piece:
                raise EOFError("the answer broke off")
            self._left -= len(piece)
            if self._chunked and self._left == 0:
                await self._reader.readexactly(2)
        return piece

    async def close(self) -> None:
        self._writer.close()


async def _read_head(reader: asyncio.StreamReader) -> Tuple[int, Mapping[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ", 2)[1])
    pairs = (line.partition(":") for line in head[1:] if line)
    return status, {name.strip().lower(): value.strip() for name, _, value in pairs}


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of the blocking side."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine of the blocking side was suspended")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Runs an asynchronous generator of the blocking side."""
    try:
        while True:
            try:
                yield finish(_next(items))
            except StopAsyncIteration:
                return
    finally:
        if isinstance(items, AsyncGenerator):
            finish(_close(items))


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


async def _close(items: AsyncGenerator[T, None]) -> None:
    await items.aclose()
