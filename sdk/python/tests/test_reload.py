"""A worker that starts anew when its source changes."""

import os
import signal

SOURCE = "import everbeat\napp = everbeat.App()\n@app.task\ndef which(ctx):\n    return {}\n"


def write(path, text) -> None:
    """Writes a file with a time of its own, however coarse the clock of the file system is."""
    path.write_text(text)
    write.time = getattr(write, "time", 1_700_000_000) + 10
    os.utime(path, (write.time, write.time))


def remote(start, server, folder):
    return start("mine:app", "--connect", f"127.0.0.1:{server.port}", "--reload", cwd=folder)


def test_a_change_drains_the_worker_and_starts_it_anew(remote_server, start, tmp_path):
    write(tmp_path / "mine.py", SOURCE.format(1))
    worker = remote(start, remote_server, tmp_path)
    first = remote_server.welcomed()
    first.work("which")
    assert first.expect_end().result == "1"
    write(tmp_path / "mine.py", SOURCE.format(2))
    first.expect("draining")
    first.end()
    second = remote_server.welcomed(epoch=2)
    assert second.hello.worker_id == ""
    second.work("which", run_id="r2", token=b"2")
    assert second.expect_end().result == "2"
    assert "mine.py changed" in worker.output
    worker.signal(signal.SIGTERM)
    second.expect("draining")
    second.end()
    assert worker.wait() == 0


def test_a_mistake_is_shown_and_waited_out(remote_server, start, tmp_path):
    write(tmp_path / "mine.py", "app = (\n")
    worker = remote(start, remote_server, tmp_path)
    worker.expect_line("waiting for a change")
    write(tmp_path / "mine.py", SOURCE.format(3))
    link = remote_server.welcomed()
    link.work("which")
    assert link.expect_end().result == "3"


def test_a_worker_of_a_pool_exits_and_leaves_the_rest_to_the_pool(server, start, tmp_path):
    write(tmp_path / "mine.py", SOURCE.format(1))
    worker = start("mine:app", "--reload", socket=server.path, cwd=tmp_path)
    link = server.welcomed()
    link.silence_until_pong()
    write(tmp_path / "mine.py", SOURCE.format(2))
    link.expect("draining")
    link.end()
    assert worker.wait() == 0
