"""The quick start of README.md, as a newcomer runs it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import urllib.request
from typing import Any

from e2e.runner import case
from e2e.session import Session
from front.bed import Bed
from tests.agentproc import wait_until

_REPOSITORY = pathlib.Path(__file__).parents[2]
_SECTION = "## Try it"
_YOURS = "your servers"  # the comment of the line whose servers are the reader's
_NAMED = ("http://a:8000", "http://b:8000")
_SERVES = re.compile(r"bin/blockyard (agent|router) ")  # a command that does not end
_PORTS = (8000, 8090, 9400)  # that the commands listen on
_SECONDS = 1200.0  # for a command that ends: the first build compiles everything
_READY_SECONDS = 60.0
# How a machine reaches the internet. Everything else is as on the first day.
_NETWORK = re.compile(r"(?i)\w+_proxy|SSL_CERT_(FILE|DIR)|CURL_CA_BUNDLE|GOPROXY|GOSUMDB")


@case("quick-start", "README's quick start works in a new checkout, with nothing in the home")
def quick_start(bed: Bed) -> str:
    servers = bed.plain()
    blocks = _blocks((_REPOSITORY / "README.md").read_text())
    mine = [line for block in blocks for line in block if _YOURS in line]
    assert len(mine) == 1 and all(url in mine[0] for url in _NAMED), f"your servers: {mine}"
    newcomer = _Newcomer(bed.dir / "newcomer")
    done: list[str] = []
    try:
        for block in blocks:
            _free_ports()
            for line in block:
                command = line
                if _YOURS in line:
                    for name, server in zip(_NAMED, servers, strict=True):
                        command = command.replace(name, server.url)
                done.append(_run(newcomer, command))
            newcomer.stop()
    finally:
        newcomer.close()
    return ", ".join(done)


def _blocks(readme: str) -> list[list[str]]:
    """The commands of the quick start: a list for each block of the section."""
    section = readme.partition(f"\n{_SECTION}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    blocks = [[line for line in text.splitlines() if line[:1] not in ("", "#")] for text in found]
    assert blocks, f"README.md has no commands under {_SECTION}"
    return blocks


def _free_ports() -> None:
    for port in _PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as err:
                raise AssertionError(f"the quick start needs port {port}: {err}") from err


def _run(newcomer: _Newcomer, command: str) -> str:
    """Runs one command and checks what the reader sees. Returns a remark."""
    name = command.partition("#")[0].strip()
    if _SERVES.match(command):
        ready = newcomer.serve(command)
        _check_server(ready, name)
        return " ".join(name.split()[:2])
    shown = newcomer.run(command)
    if name.startswith("curl"):
        answer = json.loads(shown)
        counted = answer["usage"]["completion_tokens"]
        assert answer["object"] == "chat.completion" and counted, shown
        return f"a chat of {counted} tokens"
    if name == "make demo":
        assert re.search(r"^PASSED ", shown, re.MULTILINE), shown[-3000:]
    return name


def _check_server(ready: dict[str, Any], name: str) -> None:
    """Waits until a server that has started does its work."""
    if "door" in ready:
        port = ready["door"].rpartition(":")[2]
        # A person takes longer to type the next command.
        wait_until(f"{name} serves", lambda: _healthy(f"http://127.0.0.1:{port}/health"), 60.0, 0.1)
    elif "--agents" in name:
        known = f"http://{ready['http']}/v1/agents"
        wait_until(f"{name} follows the agent", lambda: _follows(known), 60.0, 0.1)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def _follows(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return any(agent["connected"] for agent in json.loads(answer.read()))


class _Newcomer:
    """A person with a new checkout, an empty home and the system's programs. close() cleans up."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._checkout = directory / "blockyard"
        self._home = directory / "home"
        self._home.mkdir(parents=True)
        _copy_sources(self._checkout)
        go = shutil.which("go")
        assert go, "Go is missing: the quick start builds from source"
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._env = {k: v for k, v in os.environ.items() if _NETWORK.fullmatch(k)}
        self._env |= {"HOME": str(self._home), "PATH": f"{os.path.dirname(go)}:{system}"}
        self._serving: list[tuple[str, Session, pathlib.Path]] = []

    def run(self, command: str) -> str:
        """Runs a command to its end. Returns its output."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._checkout,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, command: str) -> dict[str, Any]:
        """Starts a command that goes on. Returns its ready line."""
        log = self._home.parent / f"terminal-{len(self._serving)}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._checkout,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._serving.append((command, Session(process), log))

        def ready() -> dict[str, Any] | None:
            text = log.read_text()
            assert process.poll() is None, f"{command}: ended\n{text}"
            rows = (json.loads(line) for line in text.splitlines(True) if line.endswith("}\n"))
            return next((row for row in rows if row.get("ready")), None)

        return wait_until(f"{command}: ready", ready, _READY_SECONDS, 0.05)

    def stop(self) -> None:
        """Ends the servers, which must be running still and have logged no error."""
        for command, session, log in self._serving:
            text = log.read_text()
            assert session.process.poll() is None, f"{command}: ended\n{text}"
            assert '"level":"error"' not in text, f"{command}:\n{text}"
        self._end()

    def close(self) -> None:
        """Ends the servers and removes Go's module cache, which is read-only."""
        self._end()
        self.run("go clean -modcache")

    def _end(self) -> None:
        for _, session, _ in self._serving:
            session.terminate(30.0)
            session.kill9(30.0)
        self._serving.clear()


def _copy_sources(target: pathlib.Path) -> None:
    """Copies the files that git has, or would take."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=_REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        source = _REPOSITORY / name
        if source.is_file():  # a deleted file is listed until it is committed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
