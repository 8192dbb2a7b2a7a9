"""The tasks of this project. Change a task, restart its workers with `everbeat pool restart tasks`."""

import hashlib
from collections.abc import Generator
from pathlib import Path

import everbeat

app = everbeat.App()


@app.task
def count_words(ctx: everbeat.Context, text: str) -> dict[str, int]:
    """A plain task: what it returns is the result of the run."""
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


@app.task
def primes(ctx: everbeat.Context, below: int) -> Generator[int, None, dict[str, int]]:
    """A generator: each item is streamed while the task runs. The return value is the result."""
    found = 0
    for number in range(2, below):
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            found += 1
            yield number
        ctx.heartbeat(done=number + 1, total=below)
    return {"found": found}


@app.task
def checksums(ctx: everbeat.Context, folder: str) -> dict[str, str]:
    """A task with checkpoints: if its worker dies, the next attempt goes on after the last one."""
    sums: dict[str, str] = ctx.resume({})
    files = sorted(path for path in Path(folder).iterdir() if path.is_file())
    for path in files:
        if path.name not in sums:
            sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            # Returns when the checkpoint is stored.
            ctx.heartbeat(done=len(sums), total=len(files), note=path.name, checkpoint=sums)
    return sums
