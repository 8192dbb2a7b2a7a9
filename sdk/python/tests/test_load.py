"""Apps that cannot be found or imported, and wrong usage."""

import subprocess
import sys

import pytest


@pytest.fixture
def run(server, start, tmp_path):
    def run(reference, source=None, *more, name="mine.py"):
        if source is not None:
            (tmp_path / name).write_text(source)
        worker = start(reference, *more, socket=server.path, cwd=tmp_path)
        return worker.wait(), worker.output

    return run


def test_a_module_that_raises_is_shown_with_its_traceback(run):
    code, output = run("mine:app", "def f():\n    raise ValueError('half done')\nf()\n")
    assert code == 2
    assert "raise ValueError('half done')" in output
    assert "'mine:app' cannot be imported: ValueError: half done" in output
    assert "importlib" not in output


def test_a_syntax_error_is_shown_with_its_line(run):
    code, output = run("mine:app", "app = (\n")
    assert code == 2
    assert "mine.py" in output
    assert "SyntaxError" in output


def test_a_missing_import_of_the_module_is_shown_as_it_is(run):
    code, output = run("mine:app", "import no_such_library\n")
    assert code == 2
    assert "No module named 'no_such_library'" in output
    assert "mine.py" in output


def test_threads_of_a_module_that_raises_do_not_keep_the_process(run):
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\n1/0\n"
    code, output = run("mine:app", source)
    assert code == 2
    assert "ZeroDivisionError" in output


def test_a_module_that_exits_is_not_taken_for_success(run):
    assert run("mine:app", "import sys\nsys.exit(0)\n")[0] == 2


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("nowhere.py:app", "there is no file"),
        (":app", "names no module"),
        ("mine:other", "'mine' has no 'other'; it has mine:application"),
        ("mine:number", "is a int, not an everbeat.App; it has mine:application"),
        ("mine", "'mine' has no 'app'; it has mine:application"),
    ],
)
def test_an_app_that_is_not_there_is_said_with_a_remedy(run, reference, says):
    code, output = run(reference, "import everbeat\napplication = everbeat.App()\nnumber = 1\n")
    assert code == 2
    assert says in output
    assert "Traceback" not in output


def test_an_app_may_be_given_as_a_file(server, start, tmp_path):
    (tmp_path / "helper.py").write_text("NAME = 'helped'\n")
    (tmp_path / "mine.py").write_text(
        "import everbeat, helper\napp = everbeat.App()\n@app.task\ndef who(ctx):\n    return helper.NAME\n"
    )
    start(str(tmp_path / "mine.py"), socket=server.path)
    link = server.welcomed()
    link.work("who")
    assert link.expect_end().result == '"helped"'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tasks:app"], "--connect HOST:PORT"),
        (["tasks:app", "--connect", "nohost"], "is not an address"),
        (["tasks:app", "--connect", "localhost:1", "--slots", "0"], "at least one"),
        (["tasks:app", "--connect", "localhost:1", "--token-file", "/none"], "No such file"),
        ([], "MODULE:APP"),
    ],
)
def test_wrong_usage_exits_with_2(start, arguments, says):
    worker = start(*(arguments or ["--slots", "1"]))
    assert worker.wait() == 2
    assert says in worker.output


def test_a_worker_imports_no_client_until_one_is_asked_for():
    code = (
        "import sys, everbeat.worker.main\n"
        "assert 'everbeat.client' not in sys.modules and 'http.client' not in sys.modules\n"
        "assert everbeat.Client is everbeat.client.Client and 'Client' in dir(everbeat)\n"
        "from everbeat import *\n"
        "assert issubclass(NotFound, EverbeatError) and not hasattr(everbeat, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
