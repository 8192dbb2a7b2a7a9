"""Workers from elsewhere, over a network that drops, cuts and lies."""

import random
import subprocess
import time
from collections import Counter

import pytest
from network import PORT, Certificate, Elsewhere, RemoteWorker, free_base, token, why_not
from trials import Trial

pytestmark = [pytest.mark.real, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

WORKERS = {"ping_interval": "250ms", "ping_timeout": "4s", "worker_ttl": "12s"}
WAYS = ["up", "down", "both"]


@pytest.fixture
def places():
    """Three networks."""
    base, made = free_base(), []
    try:
        for number in range(3):
            made.append(Elsewhere(base, number))
        yield made
    except subprocess.CalledProcessError as error:
        if len(made) == 3:
            raise
        pytest.skip(f"no network can be made here: {error.stderr.strip()}")
    finally:
        for place in made:
            place.remove()


class Remote:
    """A server for workers from elsewhere, and workers in three networks."""

    def __init__(self, places, folder) -> None:
        self.places, self.folder = places, folder
        self.certificate = Certificate(folder, "server", places[0].server)
        self.tokens = [token("test", "boss", "read", "submit", "admin"), token("workers", "right", "worker")]
        self.right = self.write("right")
        self.workers = []
        self.server = None

    def start(self, **config):
        config = {
            "server": {
                "worker_listen": f"{self.places[0].server}:{PORT}",
                "tls_cert": str(self.certificate.certificate),
                "tls_key": str(self.certificate.key),
            },
            "auth": {"tokens": self.tokens},
            "workers": WORKERS,
            **config,
        }
        self.server = Trial(config=config, token="boss")
        self.server.start()
        return self.server

    def write(self, secret):
        path = self.folder / f"token-{secret}"
        path.write_text(f"{secret}\n")
        return path

    def worker(self, place, *more, authority=None, token=None):
        authority = authority or self.certificate.certificate
        worker = RemoteWorker(place, authority, token or self.right, *more)
        self.workers.append(worker)
        return worker

    def all(self, *more):
        """A worker in each network; answers them when they serve."""
        workers = [self.worker(place, *more) for place in self.places]
        for worker in workers:
            worker.expect_line("connected to")
        self.server.until(lambda: len(self.server.workers()) == len(workers), "three workers")
        return workers

    def end(self):
        for worker in self.workers:
            worker.end()
        if self.server is not None:
            self.server.stop()


@pytest.fixture
def remote(places, tmp_path):
    remote = Remote(places, tmp_path)
    yield remote
    remote.end()


@pytest.fixture
def server(remote):
    # Short, so that work which nobody vouches for stops soon.
    return remote.start(replica={"heartbeat_timeout": "9s", "drain_grace": "500ms"})


def items_of(server, run):
    """The numbers that a run of `items` has streamed, and the attempts that did."""
    found, after = [], 0
    while True:
        page = server.ask(f"runs/{run}/output?limit=1000&after={after}")
        if not page["items"]:
            return found
        found += [(item["attempt"], item["item"][0]) for item in page["items"]]
        after = page["items"][-1]["seq"]


def cut_all(remote, way):
    for place in remote.places:
        place.cut(way)


def heal_all(remote):
    for place in remote.places:
        place.heal()


@pytest.mark.parametrize("way", WAYS)
def test_a_short_cut_costs_nothing(remote, server, way, tmp_path):
    workers = remote.all("--slots", "4")
    known = {worker["id"] for worker in server.workers()}
    counted = [server.submit("count", {"path": str(tmp_path / f"count{n}"), "to": 60, "pause": 0.1}) for n in range(3)]
    streamed = [server.submit("items", {"to": 120, "pause": 0.05}) for _ in range(3)]
    slept = [server.submit("work", {"seconds": 3, "path": str(tmp_path / "done")}) for _ in range(3)]
    for run in counted:
        server.began(run)
    for _ in range(2):
        cut_all(remote, way)
        time.sleep(1.5)
        heal_all(remote)
        time.sleep(1.0)
    for run in [*counted, *streamed, *slept]:
        assert server.wait(run, 60).succeeded
        assert server.outcomes(run) == ["succeeded"]
    for run in streamed:
        assert items_of(server, run) == [(1, number) for number in range(120)]
    for number in range(3):
        assert (tmp_path / f"count{number}").read_text() == "1 0\n"
    assert Counter((tmp_path / "done").read_text().split()) == Counter(slept)
    assert server.verdicts() == []
    assert {worker["id"] for worker in server.workers()} == known
    assert all(worker.process.poll() is None for worker in workers)


@pytest.mark.parametrize("way", WAYS)
def test_after_a_long_cut_another_worker_has_the_work_and_the_first_is_not_heard(remote, server, way, tmp_path):
    first = remote.worker(remote.places[0], "--slots", "4")
    first.expect_line("connected to")
    go = tmp_path / "go"
    waits = server.submit("wait_for", {"path": str(go)})
    streams = server.submit("items", {"to": 100, "pause": 0.1})
    server.began(waits)
    server.until(lambda: items_of(server, streams), "items")
    others = [remote.worker(place, "--slots", "4") for place in remote.places[1:]]
    for worker in others:
        worker.expect_line("connected to")
    before = server.worker_of(waits)["id"]
    at = time.monotonic()
    remote.places[0].cut(way)
    verdict = server.verdict(waits)
    judged_after = time.monotonic() - at
    assert (verdict["judgement"], verdict["reason"]) == ("lost", "worker_cut_off"), verdict
    assert verdict["evidence"]["worker_id"] == before
    # A worker whose end of the link is seen to close is awaited for its time to live, any other for the timeout.
    assert 3.5 < judged_after < (17 if way == "down" else 7), judged_after
    server.until(lambda: server.run(waits)["attempt"] == 2, "the second attempt")
    assert server.worker_of(waits)["id"] != before
    # The first worker ends its attempts as well, and comes back with what it has.
    go.write_text("")
    result = server.wait(waits).unwrap()
    time.sleep(1.0)
    remote.places[0].heal()
    assert server.wait(streams, 60).unwrap() == 2
    assert server.wait(waits).unwrap() == result != first.pid
    for run in (waits, streams):
        assert server.outcomes(run) == ["lost", "succeeded"]
        assert len(server.verdicts(run)) == 1
    # Of the first attempt a beginning without a gap is kept, and all of the second.
    found = items_of(server, streams)
    began = [number for attempt, number in found if attempt == 1]
    assert began == list(range(len(began)))
    assert [number for attempt, number in found if attempt == 2] == list(range(100))
    # It serves again, as a new worker.
    server.until(lambda: len(server.workers()) == 3, "the third worker", 40)
    assert before not in {worker["id"] for worker in server.workers()}
    assert first.process.poll() is None


@pytest.mark.parametrize("way", WAYS)
def test_work_that_must_not_go_on_alone_has_stopped_before_its_successor_begins(remote, server, way, tmp_path):
    first = remote.worker(remote.places[0])
    first.expect_line("connected to")
    path = tmp_path / "trod"
    run = server.submit("tread", {"path": str(path)}, policy={"when_isolated": "stop", "cancel_grace": "1s"})
    server.began(run)
    remote.worker(remote.places[1]).expect_line("connected to")
    remote.places[0].cut(way)
    server.until(lambda: server.run(run)["attempt"] == 2 and server.run(run)["progress"], "a second attempt", 60)
    time.sleep(0.5)
    (tmp_path / "trod.enough").write_text("")
    assert server.wait(run).unwrap() == 2
    remote.places[0].heal()
    marks = [line.split() for line in path.read_text().splitlines()]
    times = {attempt: [float(at) for number, at in marks if number == attempt] for attempt in "12"}
    assert max(times["1"]) < min(times["2"]), "both at once"
    assert server.outcomes(run) == ["lost", "succeeded"]
    assert server.verdict(run)["reason"] in ("worker_cut_off", "isolated")


def test_items_survive_connections_that_break(remote, server):
    remote.all()
    runs = [server.submit("items", {"to": 2000, "pause": 0.002, "size": 500}) for _ in range(3)]
    for run in runs:
        server.until(lambda run=run: items_of(server, run), "items")
    for _ in range(8):
        for place in remote.places:
            place.reset()
        time.sleep(random.uniform(0.02, 0.3))
        heal_all(remote)
        time.sleep(random.uniform(0.1, 0.5))
    for run in runs:
        assert server.wait(run, 60).unwrap() == 1
        assert items_of(server, run) == [(1, number) for number in range(2000)]
    assert server.verdicts() == []
    assert any("trying again" in line for worker in remote.workers for line in worker.lines)


def test_a_network_that_loses_and_delays_packets_loses_no_work(remote, server, tmp_path):
    remote.all("--slots", "4")
    for place in remote.places:
        place.lose(10)
        place.delay(50)
    counted = [server.submit("count", {"path": str(tmp_path / f"count{n}"), "to": 20}) for n in range(3)]
    streamed = [server.submit("items", {"to": 300, "size": 2000}) for _ in range(3)]
    for run in [*counted, *streamed]:
        assert server.wait(run, 90).succeeded
    for run in streamed:
        assert items_of(server, run)[-300:] == [(server.run(run)["attempt"], number) for number in range(300)]
    heal_all(remote)
    assert [server.outcomes(run) for run in [*counted, *streamed]] == [["succeeded"]] * 6


@pytest.mark.parametrize(("secret", "says"), [("wrong", "unknown"), ("boss", "worker"), ("", "token")])
def test_a_worker_without_the_right_token_is_told_so_and_ends(remote, server, secret, says):
    worker = remote.worker(remote.places[0], token=remote.write(secret))
    line = worker.expect_line("refused this worker")
    assert says in line
    assert worker.process.wait(20) == 1
    assert server.workers() == []


def test_a_token_that_was_revoked_opens_nothing_any_more(remote, server):
    (remote.worker(remote.places[0])).expect_line("connected to")
    run = server.submit("until_cancelled", policy={"on_lost": "fail"})
    server.began(run)
    server.kill()
    config = server.scratch / "everbeat.toml"
    old, new = (token("workers", secret, "worker")["sha256"] for secret in ("right", "another"))
    config.write_text(config.read_text().replace(old, new))
    server.start()
    worker = remote.workers[0]
    worker.expect_line("refused this worker")
    assert worker.process.wait(20) == 1
    assert server.workers() == []


def test_a_server_that_shows_the_wrong_certificate_gets_no_token(remote, server, tmp_path):
    other = Certificate(tmp_path, "other", remote.places[0].server)
    worker = remote.worker(remote.places[0], authority=other.certificate)
    line = worker.expect_line("no connection to")
    assert "certificate" in line.lower()
    time.sleep(1.0)
    assert server.workers() == []
    assert worker.process.poll() is None
