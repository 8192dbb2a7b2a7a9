"""Calls the functions of tasks: plain ones in threads, async ones in the event loop."""

import asyncio
import contextvars
import functools
import inspect
import json
import queue
import threading
from contextlib import closing
from typing import Any, AsyncGenerator, Callable, Coroutine, Dict, Generator, Mapping, Set, Tuple

from everbeat.app import Function, Task
from everbeat.context import AsyncContext, Context
from everbeat.errors import Cancelled, Permanent
from everbeat.worker import outcome
from everbeat.worker import worker_pb2 as pb
from everbeat.worker.attempts import Attempt, Attempts
from everbeat.worker.outbox import Outbox

# The attempt that the current thread or asyncio task performs; log records find theirs by it.
current: "contextvars.ContextVar[Attempt]" = contextvars.ContextVar("everbeat_attempt")


class Performer:
    """Performs attempts, and says how each ended."""

    def __init__(
        self, tasks: Mapping[str, Task], attempts: Attempts, outbox: Outbox, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._tasks = tasks
        self._attempts = attempts
        self._outbox = outbox
        self._loop = loop
        self._threads = Threads()
        # The event loop itself holds its tasks only weakly.
        self._running: Set[asyncio.Task[None]] = set()

    def begin(self, attempt: Attempt) -> None:
        """Has an attempt performed elsewhere, and returns at once."""
        task = self._tasks.get(attempt.task)
        if task is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            attempt.end(outcome.unperformable(f"this worker has no task {attempt.task!r}; it has: {known}"))
        elif is_async(task.function):
            self._loop.call_soon_threadsafe(self._begin_async, task, attempt)
        else:
            self._threads.run(lambda: self._perform(task, attempt))

    # In a thread.

    def _perform(self, task: Task, attempt: Attempt) -> None:
        contextvars.copy_context().run(self._perform_in_context, task, attempt)

    def _perform_in_context(self, task: Task, attempt: Attempt) -> None:
        current.set(attempt)
        try:
            positional, named = arguments(task, attempt.work.input)
            value: Any = task.function(Context(attempt), *positional, **named)
            if isinstance(value, Generator):
                value = self._stream(attempt, value)
            ended = outcome.result(value, self._attempts.message_limit)
        except BaseException as error:
            ended = _ended_by(error, attempt)
        attempt.end(ended)

    def _stream(self, attempt: Attempt, items: Generator[Any, None, Any]) -> Any:
        """Sends what a generator yields, and answers what it returns."""
        limit = self._attempts.message_limit
        with closing(items):
            try:
                item = next(items)
                while True:
                    output = attempt.next_output(outcome.text_of(item, "a streamed item", limit))
                    if self._outbox.put_with_room(output, attempt.is_wanted):
                        item = next(items)
                    else:
                        item = items.throw(Cancelled(f"run {attempt.run_id} was told to stop"))
            except StopIteration as stop:
                return stop.value

    # In the event loop.

    def _begin_async(self, task: Task, attempt: Attempt) -> None:
        context = contextvars.copy_context()
        context.run(current.set, attempt)
        running = context.run(self._create_task, self._perform_async(task, attempt), attempt)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        with self._attempts.lock:
            attempt.on_cancel = lambda: _cancel_soon(self._loop, running)
            cancelled_before = attempt.cancelled
        if cancelled_before:
            # After the first step of the task: one that is cancelled before would not say how it ended.
            self._loop.call_soon(running.cancel)

    def _create_task(self, coroutine: Coroutine[Any, Any, None], attempt: Attempt) -> "asyncio.Task[None]":
        return self._loop.create_task(coroutine, name=f"{attempt.task} {attempt.run_id}")

    async def _perform_async(self, task: Task, attempt: Attempt) -> None:
        try:
            positional, named = arguments(task, attempt.work.input)
            value: Any = task.function(AsyncContext(attempt), *positional, **named)
            if isinstance(value, AsyncGenerator):
                await self._stream_async(attempt, value)
                result = None
            else:
                result = await value
            ended = outcome.result(result, self._attempts.message_limit)
        except BaseException as error:
            ended = _ended_by(error, attempt)
        attempt.end(ended)

    async def _stream_async(self, attempt: Attempt, items: AsyncGenerator[Any, None]) -> None:
        limit = self._attempts.message_limit
        try:
            item = await items.__anext__()
            while True:
                output = attempt.next_output(outcome.text_of(item, "a streamed item", limit))
                try:
                    sent = self._outbox.offer(output)
                    while not sent and attempt.is_wanted():
                        await asyncio.wrap_future(self._outbox.room(output))
                        sent = self._outbox.offer(output)
                    # A generator that never waits would keep the loop from everything else.
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    sent = False
                if sent:
                    item = await items.__anext__()
                else:
                    item = await items.athrow(Cancelled(f"run {attempt.run_id} was told to stop"))
        except StopAsyncIteration:
            return
        finally:
            await items.aclose()


class Threads:
    """Threads that wait for something to run.

    A thread that is done is used again, so that what a library keeps for each thread is worth keeping. All are
    daemons: a function that hangs does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._made = 0
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._made += 1
                threading.Thread(target=self._work, name=f"everbeat-task-{self._made}", daemon=True).start()
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            self._calls.get()()
            with self._lock:
                self._idle += 1


def is_async(function: Function) -> bool:
    """Whether a function belongs into the event loop."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__  # An object that is called like a function.
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def arguments(task: Task, input_json: str) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """What a function is called with besides its context."""
    try:
        value = json.loads(input_json) if input_json else None
    except ValueError as error:
        raise Permanent(f"the input is not JSON: {error}") from None
    if value is None:
        return (), {}
    if not isinstance(value, dict):
        return (value,), {}
    if task.is_flow:
        value.pop("task", None)
    return (), _named(task.function, value) if task.is_node else value


def _named(function: Function, values: Dict[str, Any]) -> Dict[str, Any]:
    """Those values that the parameters of a function name."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return values
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in values.items() if name in names}


def _ended_by(error: BaseException, attempt: Attempt) -> pb.Ended:
    if isinstance(error, asyncio.CancelledError) and attempt.cancelled:
        return outcome.stopped()
    return outcome.failure(error)


def _cancel_soon(loop: asyncio.AbstractEventLoop, running: "asyncio.Task[None]") -> None:
    try:
        loop.call_soon_threadsafe(running.cancel)
    except RuntimeError:
        pass  # The loop was closed: the process is about to end.
