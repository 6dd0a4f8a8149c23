"""`logicdiag explore` as a user types it."""

import re
import signal
import socket
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from logicdiag.cli import main
from logicdiag.explore import commands
from logicdiag.explore.serve import is_loopback, listen, serve

from ..engine.small import started


def said(capsys, *arguments, expect=2):
    assert main([str(argument) for argument in arguments]) == expect
    captured = capsys.readouterr()
    return captured.err if expect else captured.out


def test_it_serves_until_ctrl_c(run):
    process = started("explore", run.path, "val_0001", "psi.strategy=greedy", "--port", 0, "--device", "cpu")
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        with urlopen(address) as page:
            assert b"logicdiag explore" in page.read()
        with pytest.raises(HTTPError, match="403"):
            urlopen(address[:-1])
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, "")


def test_help_needs_nothing_and_the_command_says_what_it_needs(run, monkeypatch, capsys):
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    for name in ("fastapi", "uvicorn", "starlette"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    for part in ("server", "serve"):
        monkeypatch.delitem(sys.modules, f"logicdiag.explore.{part}", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["explore", "--help"])
    assert ended.value.code == 0
    assert "logicdiag[explore]" in capsys.readouterr().out
    told = said(capsys, "explore", run.path)
    assert told == (
        'logicdiag: explore needs fastapi and uvicorn; install what is missing with: pip install "logicdiag[explore]"\n'
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("FLAT", "FLAT: the run has model.head flat, which predicts leaves alone"),
        ("nowhere", "nowhere is no run folder"),
        ("RUN nowhere.png", "nowhere.png: there is no such file"),
        ("RUN notes.txt", "notes.txt: cannot be read as an image; it is in no format that is known"),
        ("RUN val_000", "val_000: neither a file nor an image in the data of RUN"),
        ("RUN --checkpoint beste", "checkpoint is 'beste', expected one of last, best"),
        ("RUN psi.strategy=greed", "did you mean 'greedy'"),
        ("RUN --port 70000", "--port is 70000, expected a number from 0 to 65535"),
        ("RUN --host no.such.name.invalid", "--host is 'no.such.name.invalid', which is no address of this computer"),
        ("RUN --host 203.0.113.7", "--host is '203.0.113.7', which is no address of this computer"),
    ],
)
def test_mistakes(run, flat_run, tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no image")
    places = {"RUN": str(run.path), "FLAT": str(flat_run.path)}
    for short, long in places.items():
        says = says.replace(short, long)
    told = said(capsys, "explore", *(places.get(word, word) for word in arguments.split()), "--device", "cpu")
    assert says in told
    assert len(told.splitlines()) == 1


def test_a_port_that_is_taken(run, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        told = said(capsys, "explore", run.path, "--port", port)
        assert f"--port {port} cannot be had on 127.0.0.1" in told
        assert told.endswith("; --port 0 takes a free one\n")


def test_the_usual_port_gives_way(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr("logicdiag.explore.serve.PORT", other.getsockname()[1])
        with listen("127.0.0.1", None) as found:
            assert found.getsockname()[1] != other.getsockname()[1]


def test_other_computers_are_warned_of(monkeypatch):
    monkeypatch.setattr("logicdiag.explore.serve.server", lambda *_: _Silent())
    opened, told = [], []
    monkeypatch.setattr("webbrowser.open", opened.append)
    serve(None, "127.0.0.1", 0, True, told.append)
    assert len(told) == 1
    assert told[0].startswith(opened[0])
    serve(None, "0.0.0.0", 0, False, told.append)
    assert told[1].startswith("warning: 0.0.0.0 can be reached from other computers")
    assert "//0.0.0.0" not in told[2]
    assert len(opened) == 1


class _Silent:
    def run(self, sockets):
        raise KeyboardInterrupt


def test_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "elsewhere"))
