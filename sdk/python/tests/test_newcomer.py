"""From an empty folder to a task that ran: the wheel, the README and `everbeat init`, as somebody new meets them."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import everbeat
from everbeat.testing import find_binary

pytestmark = pytest.mark.real

SDK = Path(__file__).parents[1]
# Packages are fetched and installed meanwhile.
PATIENCE = 180.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(SDK)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    (made,) = folder.iterdir()
    return made


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    info = f"everbeat-{everbeat.__version__}.dist-info/"
    package = {name for name in names if not name.startswith(info)}
    assert package == {
        str(path.relative_to(SDK / "src"))
        for path in (SDK / "src").rglob("*")
        if path.suffix in (".py", ".pyi", ".typed")
    }
    assert {"everbeat/py.typed", "everbeat/worker/worker_pb2.py", "everbeat/worker/worker_pb2.pyi"} <= package
    assert {name[len(info) :] for name in set(names) - package} == {"METADATA", "RECORD", "WHEEL", "entry_points.txt"}
    assert f"\nVersion: {everbeat.__version__}\n" in metadata


class Home:
    """An empty folder, and a shell in it whose `pip` knows the wheel and whose `everbeat` is the binary."""

    def __init__(self, wheel, binary) -> None:
        # Not pytest's own folder, which stays for a while: an environment is large.
        self.folder = Path(tempfile.mkdtemp(prefix="everbeat-"))
        self.work = self.folder / "work"
        self.work.mkdir()
        tools = self.folder / "bin"
        tools.mkdir()
        (tools / "everbeat").symlink_to(Path(binary).resolve())
        constraint = self.folder / "constraints.txt"
        constraint.write_text(f"everbeat @ {wheel.as_uri()}\n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVERBEAT_", "PYTHON"))}
        self.environ = {
            **kept,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(constraint),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "EVERBEAT_SERVER__LISTEN": address,
            "EVERBEAT_URL": f"http://{address}",
        }

    def type(self, script, cwd=None):
        """What a shell that is given the script writes to stdout. Whatever it leaves in the background is ended."""
        # Files, not pipes: nobody need read while the script runs.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                ["sh", "-e", "-c", script],
                cwd=cwd or self.work,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                code = process.wait(PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said, complained = (file.seek(0) or file.read() for file in (out, err))
        assert code == 0, f"{script}\n{said}\n{complained}"
        return said

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def home(wheel):
    binary = find_binary()
    if binary is None:
        pytest.skip("there is no everbeat binary: set EVERBEAT_BIN, or put `everbeat` on the path")
    home = Home(wheel, binary)
    yield home
    home.close()


def test_the_readme_leads_to_a_task_that_ran(home):
    text = (SDK / "README.md").read_text()
    section = re.search(r"^## In a minute$(.*?)^## ", text, re.S | re.M)[1]
    blocks = re.findall(r"(?:^`([\w.]+)`:\n\n)?^```(\w+)\n(.*?)^```$", section, re.S | re.M)
    assert [(name, kind) for name, kind, _ in blocks] == [
        ("", "sh"),
        ("tasks.py", "python"),
        ("everbeat.toml", "toml"),
        ("", "sh"),
        ("", "python"),
    ]
    install, tasks, config, run, client = (content for _, _, content in blocks)
    (home.work / "tasks.py").write_text(tasks)
    (home.work / "everbeat.toml").write_text(config)
    (home.work / "client.py").write_text(client)
    serve, submit = run.splitlines()
    assert serve == "everbeat serve &"
    said = home.type(f"{install}{serve.replace('&', '>serve.log 2>&1 &')}\n{submit}\npython3 client.py\nkill $!; wait")
    words = len(tasks.split()), len(config.split())
    assert said.splitlines()[-2:] == [
        json.dumps({"words": sum(words)}, separators=(",", ":")),
        f"{{'words': {words[0]}}}",
    ]


def test_a_folder_that_init_wrote_runs_at_once(home):
    told = home.type("everbeat init python first")
    commands = re.findall(r"^  (.*)$", told, re.M)
    enter, install, serve, submit = commands
    folder = home.work / "first"
    assert (enter, serve) == ("cd first", "everbeat serve")
    # The packages of the README are there already: an environment takes longer than all the rest.
    if (home.work / "venv").exists():
        (folder / "venv").symlink_to(home.work / "venv")
        install = install.partition(" && ")[2]
    more = re.findall(r"^everbeat submit .*$", (folder / "README.md").read_text(), re.M)
    assert submit in more
    said = home.type(
        "\n".join(
            [
                install,
                f"{serve} >serve.log 2>&1 &",
                submit,
                "everbeat submit primes --input '{\"below\": 30}' --follow",
                'everbeat submit checksums --input \'{"folder": "."}\' --wait',
                "kill $!; wait",
            ]
        ),
        folder,
    )
    counted, *primes, found, sums = map(json.loads, said.splitlines()[-13:])
    assert counted == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert primes == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    assert found == {"found": 10}
    assert len(sums["tasks.py"]) == 64
    tested = home.type("venv/bin/python -m pytest -q -p no:cacheprovider", folder)
    assert "4 passed" in tested
