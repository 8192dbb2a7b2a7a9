"""The lease that the server holds on a worker."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import grpc
import pytest
from fake_server import FakeServer

EMERGENCY = r"^EMERGENCY_SHUTDOWN:{}:\d{{10}}$"


def assert_emergency(worker, reason) -> None:
    assert worker.wait() == 1
    assert re.search(EMERGENCY.format(reason), worker.output, re.M), worker.output


def test_pings_are_answered_with_how_the_worker_is(server, worker):
    link = server.welcomed(pinging=False)
    sequence = link.ping()
    pong = link.pongs.get(timeout=10)
    assert pong.sequence == sequence
    assert pong.running == 0
    assert pong.resident_bytes > 1_000_000
    assert pong.cpu_ms > 0
    link.work("until_cancelled")
    link.expect_started()
    link.ping()
    after = link.pongs.get(timeout=10)
    assert after.running == 1
    assert after.progress > pong.progress


def test_a_ping_of_another_epoch_is_not_answered(server, worker):
    link = server.welcomed(pinging=False, epoch=5)
    link.ping(epoch=4)
    right = link.ping()
    assert link.pongs.get(timeout=10).sequence == right


def test_a_worker_without_pings_warns_and_exits(server, worker):
    link = server.welcomed(ttl=1.0, pinging=False)
    link.ping()
    began = time.monotonic()
    link.work("until_cancelled")
    assert_emergency(worker, "no_ping")
    assert "no ping for 0." in worker.output
    assert 0.5 < time.monotonic() - began < 15


def test_pings_of_another_epoch_do_not_keep_a_worker_alive(server, worker):
    link = server.welcomed(ttl=1.0, pinging=False)
    for _ in range(200):
        if worker.process.poll() is not None:
            break
        link.ping(epoch=99)
        time.sleep(0.05)
    assert_emergency(worker, "no_ping")


def test_a_worker_whose_main_thread_hangs_exits_as_well(server, worker):
    link = server.welcomed(ttl=1.0, pinging=False)
    link.ping()
    link.work("hang_loop")
    link.expect_started()
    assert_emergency(worker, "no_ping")


def test_pings_are_answered_while_the_main_thread_hangs(server, worker):
    link = server.welcomed()
    link.work("hang_loop")
    link.expect_started()
    deadline = time.monotonic() + 20
    while link.pongs.get(timeout=10).lag_ms < 200:
        assert time.monotonic() < deadline


def test_a_worker_that_was_stopped_past_its_time_exits_when_it_goes_on(server, worker):
    link = server.welcomed(ttl=1.0, pinging=False)
    link.ping()
    link.pongs.get(timeout=10)
    worker.signal(signal.SIGSTOP)
    os.waitpid(worker.process.pid, os.WUNTRACED)
    link.ping()  # Waits for the worker, and comes too late.
    time.sleep(1.5)  # The time to live itself.
    worker.signal(signal.SIGCONT)
    assert_emergency(worker, "no_ping")


def test_with_a_ttl_of_zero_a_worker_needs_no_pings(server, worker):
    link = server.welcomed(ttl=0, pinging=False)
    link.work("add", input='{"a": 1}')
    link.expect_end()


def test_a_worker_exits_when_its_guardian_is_gone(server, worker):
    server.welcomed()
    os.close(worker.life_in)
    assert_emergency(worker, "server_gone")


def test_also_while_it_imports_its_app(server, start, tmp_path):
    (tmp_path / "slow.py").write_text("print('importing')\nimport time\ntime.sleep(3600)\n")
    worker = start("slow:app", socket=server.path, cwd=tmp_path)
    worker.expect_line("importing")
    os.close(worker.life_in)
    assert_emergency(worker, "server_gone")


def test_children_of_a_task_do_not_inherit_the_life_descriptor(server, start, tmp_path):
    (tmp_path / "kids.py").write_text(
        "import everbeat, os, subprocess\n"
        "app = everbeat.App()\n"
        "@app.task\n"
        "def look(ctx):\n"
        "    fd = os.environ['EVERBEAT_WORKER_LIFE_FD']\n"
        "    seen = subprocess.run(['test', '-e', f'/proc/self/fd/{fd}'], close_fds=False).returncode == 0\n"
        "    return {'inherited': seen, 'secrets': [n for n in os.environ if 'SECRET' in n]}\n"
    )
    start("kids:app", socket=server.path, cwd=tmp_path)
    link = server.welcomed()
    link.work("look")
    assert json.loads(link.expect_end().result) == {"inherited": False, "secrets": []}


def test_a_socket_that_nobody_listens_on_means_the_server_is_gone(server, worker):
    server.welcomed()
    server.stop()
    assert_emergency(worker, "server_gone")


def test_a_socket_that_was_never_there_means_the_same(start, tmp_path):
    assert_emergency(start(socket=tmp_path / "none"), "server_gone")


@pytest.mark.parametrize("obeys", [True, False])
def test_unfenced_work_stops_when_nobody_vouches_for_it(server, worker, obeys, tmp_path):
    link = server.welcomed(pinging=False)
    task = "until_cancelled" if obeys else "wait_for"
    value = {} if obeys else {"path": str(tmp_path / "never")}
    link.work(task, input=json.dumps(value), stop_when_isolated=True)
    link.work("until_cancelled", run_id="r2", token=b"2")
    link.expect_started()
    link.expect_started()
    link.ping(vouched=2.0)
    if obeys:
        ended = link.expect_end()
        assert (ended.lease.run_id, ended.WhichOneof("outcome")) == ("r1", "stopped")
        link.ping()
        link.pongs.get(timeout=10)
        assert link.pongs.get(timeout=10).running == 1
    else:
        assert_emergency(worker, "isolated")


def test_a_ping_renews_what_is_vouched_for(server, worker, tmp_path):
    link = server.welcomed(vouched=1.0)
    go = tmp_path / "go"
    link.work("wait_for", input=json.dumps({"path": str(go)}), stop_when_isolated=True)
    link.expect_started()
    for _ in range(30):
        link.pongs.get(timeout=10)
    go.write_text("gone on")
    assert json.loads(link.expect_end().result) == "gone on"


def hold_the_interpreter(link, seconds, deaf=False, **fields) -> None:
    value = json.dumps({"seconds": seconds, "deaf": deaf})
    link.work("hold_gil", input=value, run_id="held", token=b"h", **fields)
    link.answer(link.expect("heartbeat"))


@pytest.mark.parametrize("deaf", [False, True])
def test_unfenced_work_that_holds_the_interpreter_is_ended_by_the_kernel(server, worker, deaf):
    link = server.welcomed(pinging=False)
    link.ping()
    link.pongs.get(timeout=10)
    link.ping(vouched=2.0)
    hold_the_interpreter(link, 3600, deaf, stop_when_isolated=True)
    assert worker.wait() == (-signal.SIGKILL if deaf else -62), worker.output


def test_the_kernel_ends_nobody_whose_unfenced_work_is_over(server, worker):
    link = server.welcomed(pinging=False)
    link.ping(vouched=1.0)
    link.work("add", input='{"a": 1}', stop_when_isolated=True)
    link.expect_end()
    hold_the_interpreter(link, 2)  # Longer than anybody vouches for.
    assert link.expect_end().WhichOneof("outcome") == "result"


# A worker of no pool.


def remote(start, server, *more, env=None):
    environ = {"EVERBEAT_TOKEN": "tok", **(env or {})}
    return start("tasks:app", "--connect", f"127.0.0.1:{server.port}", *more, env=environ)


def test_a_remote_worker_shows_its_token_and_its_queues(remote_server, start):
    remote(start, remote_server, "--queues", "a, b", "--slots", "3")
    link = remote_server.connection()
    assert link.metadata["authorization"] == "Bearer tok"
    assert (link.hello.secret, link.hello.pool, link.hello.slots) == ("tok", "", 3)
    assert list(link.hello.queues) == ["a", "b"]
    assert link.hello.host


def test_a_remote_worker_that_lost_its_server_begins_anew(remote_server, start):
    worker = remote(start, remote_server)
    link = remote_server.welcomed(ttl=1.0, pinging=False)
    link.work("until_cancelled")
    link.expect_started()
    again = remote_server.welcomed()
    assert (again.hello.worker_id, again.hello.key, list(again.hello.leases)) == ("", b"", [])
    again.work("add", input='{"a": 1}', run_id="r2", token=b"2")
    assert again.expect_end().lease.run_id == "r2"
    assert worker.process.poll() is None


def test_a_remote_worker_without_pings_connects_again_and_goes_on(remote_server, start, tmp_path):
    go = tmp_path / "go"
    worker = remote(start, remote_server)
    link = remote_server.welcomed(pinging=False)
    lease = link.work("wait_for", input=json.dumps({"path": str(go)}))
    link.expect_started()
    # It waits a second, and no longer.
    again = remote_server.welcomed(epoch=2)
    assert (again.hello.worker_id, list(again.hello.leases)) == ("w1", [lease])
    worker.expect_line("no ping from")
    go.write_text("done")
    assert json.loads(again.expect_end().result) == "done"


def test_unless_it_is_told_to_exit(remote_server, start):
    worker = remote(start, remote_server, "--exit-on-loss")
    remote_server.welcomed(ttl=1.0, pinging=False)
    assert_emergency(worker, "no_ping")


def test_a_remote_worker_waits_for_a_server_that_is_not_there(remote_server, start):
    remote_server.stop()
    remote_server.address = f"127.0.0.1:{remote_server.port}"
    worker = remote(start, remote_server)
    worker.expect_line("trying again")
    remote_server.start()
    link = remote_server.welcomed()
    link.work("add", input='{"a": 1}')
    link.expect_end()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_remote_worker_trusts_the_certificates_that_it_is_given(start, tmp_path):
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = ["openssl", *made.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    pair = [(key.read_bytes(), certificate.read_bytes())]
    server = FakeServer("localhost:0", grpc.ssl_server_credentials(pair))
    token = tmp_path / "token"
    token.write_text("from-file\n")
    address = f"https://localhost:{server.port}"
    try:
        start("tasks:app", "--connect", address, "--tls-ca", str(certificate), "--token-file", str(token))
        link = server.welcomed()
        assert link.metadata["authorization"] == "Bearer from-file"
        link.work("add", input='{"a": 1}')
        link.expect_end()
        start("tasks:app", "--connect", address).expect_line("no connection")
    finally:
        server.stop()
