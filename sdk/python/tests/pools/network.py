"""Networks of their own for workers from elsewhere, whose links can be cut, each way."""

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import uuid

from trials import APPS, PATIENCE, SOURCES, alive

from everbeat.testing import find_binary

PORT = 7118
NEEDED = {"ip": "iproute2", "nft": "nftables", "openssl": "openssl"}
# What a direction is called here: of what the worker sends, and of what it receives.
CHAINS = {"up": ["sent"], "down": ["received"], "both": ["sent", "received"]}


def why_not():
    """Why there can be no such networks here; `None` if there can."""
    if find_binary() is None:
        return "there is no everbeat binary: set EVERBEAT_BIN, or put `everbeat` on the path"
    if os.geteuid() != 0:
        return "only root can make networks"
    missing = [package for tool, package in NEEDED.items() if shutil.which(tool) is None]
    return f"install {', '.join(missing)}" if missing else None


def run(*command, text=None):
    return subprocess.run(command, input=text, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def free_base():
    """The beginning of addresses that nobody uses here, of a range that is set aside for trials of networks."""
    used = run("ip", "-o", "-4", "addr")
    free = [base for base in (f"198.18.{number}" for number in range(256)) if f" {base}." not in used]
    return random.choice(free)


class Elsewhere:
    """A network namespace that is joined with this one by a pair of interfaces."""

    def __init__(self, base, number) -> None:
        name = uuid.uuid4().hex[:8]
        self.space, self.here, self.there = f"everbeat-{name}", f"ebs{name}", f"ebw{name}"
        self.server = f"{base}.1"
        ours, theirs = f"{base}.{4 * number + 1}", f"{base}.{4 * number + 2}"
        run("ip", "netns", "add", self.space)
        try:
            run("ip", "link", "add", self.here, "type", "veth", "peer", "name", self.there, "netns", self.space)
            run("ip", "addr", "add", f"{ours}/30", "dev", self.here)
            run("ip", "link", "set", self.here, "up")
            self.inside("ip", "addr", "add", f"{theirs}/30", "dev", self.there)
            self.inside("ip", "link", "set", self.there, "up")
            self.inside("ip", "link", "set", "lo", "up")
            if ours != self.server:
                self.inside("ip", "route", "add", self.server, "via", ours)
            chains = "".join(
                f"chain {chain} {{ type filter hook {hook} priority 0; policy accept; }}\n"
                for chain, hook in (("sent", "output"), ("received", "input"))
            )
            self.inside("nft", "-f", "-", text=f"table inet trial {{\n{chains}}}\n")
        except BaseException:
            self.remove()
            raise

    def inside(self, *command, text=None):
        return run("ip", "netns", "exec", self.space, *command, text=text)

    def rule(self, way, *rule):
        for chain in CHAINS[way]:
            self.inside("nft", "add", "rule", "inet", "trial", chain, *rule)

    def cut(self, way):
        """Nothing passes that way from now on, and nobody is told."""
        self.rule(way, "drop")

    def reset(self):
        """Whatever the worker sends to its server is answered by the end of its connection."""
        self.rule("up", "tcp", "dport", str(PORT), "reject", "with", "tcp", "reset")

    def lose(self, percent):
        """Some packets are lost, each way."""
        self.rule("both", "numgen", "random", "mod", "100", "<", str(percent), "drop")

    def delay(self, milliseconds):
        """Whatever the worker sends takes longer; false if this kernel cannot do that."""
        try:
            self.inside("tc", "qdisc", "replace", "dev", self.there, "root", "netem", "delay", f"{milliseconds}ms")
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def heal(self):
        for chain in CHAINS["both"]:
            self.inside("nft", "flush", "chain", "inet", "trial", chain)

    @contextlib.contextmanager
    def without(self, way, seconds):
        """The link is cut for so long."""
        until = time.monotonic() + seconds
        self.cut(way)
        try:
            yield
            time.sleep(max(0.0, until - time.monotonic()))
        finally:
            self.heal()

    def remove(self):
        for command in (("ip", "link", "del", self.here), ("ip", "netns", "del", self.space)):
            subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE)


class RemoteWorker:
    """`python -m everbeat.worker` in such a network."""

    def __init__(self, place, authority, token_file, *more, port=PORT) -> None:
        self.place = place
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT")}
        environ["PYTHONPATH"] = str(SOURCES)
        command = [sys.executable, "-m", "everbeat.worker", "trial_tasks:app"]
        command += ["--connect", f"https://{place.server}:{port}", "--tls-ca", str(authority)]
        command += ["--token-file", str(token_file), *more]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", place.space, *command],
            cwd=APPS,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.lines = []
        self.said = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            with self.said:
                self.lines.append(line.rstrip("\n"))
                self.said.notify_all()

    @property
    def pid(self):
        return self.process.pid

    def expect_line(self, text, seconds=PATIENCE):
        with self.said:
            found = self.said.wait_for(lambda: [line for line in self.lines if text in line], seconds)
        assert found, f"{text!r} was not said within {seconds} s:\n" + "\n".join(self.lines)
        return found[0]

    def end(self):
        if alive(self.pid):
            self.process.kill()
        self.process.wait()


class Certificate:
    """A certificate of an authority of its own, for an address."""

    def __init__(self, folder, name, address) -> None:
        self.certificate, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        made = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
        extension = f"subjectAltName=IP:{address}"
        run("openssl", *made.split(), "-addext", extension, "-keyout", str(self.key), "-out", str(self.certificate))


def token(name, secret, *scopes):
    """An entry of `auth.tokens`."""
    return {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(), "scopes": list(scopes)}
