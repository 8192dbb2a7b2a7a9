"""`venv/bin/python -m pytest` runs these tests. The last one needs `everbeat` on the path, or EVERBEAT_BIN."""

import hashlib
from pathlib import Path

import pytest
from everbeat.testing import EverbeatServer, FakeAttempt

from tasks import checksums, count_words, primes


def test_words_are_counted() -> None:
    assert count_words(FakeAttempt().context, "To be or not to be") == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_primes_are_streamed_with_progress() -> None:
    attempt = FakeAttempt()
    assert list(primes(attempt.context, 12)) == [2, 3, 5, 7, 11]
    assert (attempt.beats[-1].done, attempt.beats[-1].total) == (12, 12)


def test_checksums_go_on_after_the_last_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not read again")
    (tmp_path / "b").write_text("new")
    attempt = FakeAttempt(checkpoint={"a": "known"})
    sums = {"a": "known", "b": hashlib.sha256(b"new").hexdigest()}
    assert checksums(attempt.context, str(tmp_path)) == sums
    assert attempt.checkpoints == [sums]


@pytest.mark.everbeat(app="tasks:app")
def test_a_server_performs_them(everbeat_server: EverbeatServer) -> None:
    client = everbeat_server.client()
    run = client.runs.submit("count_words", {"text": "one two two"})
    assert client.runs.wait(run.id, timeout=60).unwrap() == {"one": 1, "two": 2}
