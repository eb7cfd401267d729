"""The test bed of a case: directories, a NATS server, and the processes of both products."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from e2e.runner import Skipped
from live import model, overlap
from live.child import Child, clean_env, wait_until
from live.overlap import Overlaps, Worker

BLOCK = 16
ENDPOINT = "dynamo.backend.generate"


class Probe:
    """A real KvRouter in a child process, see live.probe."""

    def __init__(self, child: Child) -> None:
        self._child = child
        assert child.line() == {"ready": True}

    def overlaps(
        self, tokens: list[int], lora: str | None = None, salt: str | None = None
    ) -> Overlaps:
        """The blocks that the KvRouter credits to each worker."""
        answer = self._ask({"op": "overlap", "tokens": tokens, "lora": lora, "salt": salt})
        return overlap.of_dynamo(answer)

    def generate(self, worker: Worker, tokens: list[int], output: int = 1) -> None:
        """Runs a request on a worker."""
        q = {"op": "generate", "tokens": tokens, "output": output}
        self._ask({**q, "worker": worker.id, "rank": worker.rank})

    def workers(self) -> list[int]:
        """The ids of the KvRouter's workers."""
        return self._ask({"op": "workers"})

    def _ask(self, q: dict[str, Any]) -> Any:
        answer = self._child.request(q)
        if isinstance(answer, dict) and "error" in answer:
            raise AssertionError(f"{q['op']}: {answer['error']}\n{self._child.tail()}")
        return answer

    def close(self) -> None:
        """Ends the KvRouter."""
        self._child.close()


class Server:
    """A `blockyard` process with an HTTP server. The ready line has its address under `key`."""

    def __init__(self, child: Child, key: str = "http") -> None:
        self.child = child
        self.ready: dict[str, Any] = child.line()
        self.url = f"http://{self.ready[key]}"

    def get(self, path: str, key: str = "") -> Any:
        """The parsed answer of a GET. key: another field of the ready line with an address."""
        url = f"http://{self.ready[key]}" if key else self.url
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: Any) -> Any:
        """The parsed answer of a POST: the last line of an answer with several lines."""
        q = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), method="POST")
        try:
            with urllib.request.urlopen(q, timeout=60) as answer:
                return json.loads(answer.read().splitlines()[-1])
        except urllib.error.HTTPError as err:
            text = err.read().decode(errors="replace")
            raise AssertionError(f"POST {path}: {err.code} {text}\n{self.child.tail()}") from None

    def close(self) -> None:
        """Ends the process."""
        self.child.close()


class Router(Server):
    """Blockyard's router."""

    def dump(self) -> overlap.Held:
        """The tiers of each block that each owner holds."""
        return overlap.held_by(self.get("/v1/dump", "control"))

    def overlaps(
        self, tokens: list[int], lora: str | None = None, salt: str | None = None
    ) -> Overlaps:
        """The blocks that the router's index credits to each worker, from its dump.

        Also checks that the router's decisions use the same credit.
        """
        hashes = overlap.sequence_hashes(tokens, BLOCK, lora, salt)
        last: list[str] = [""]

        def settled() -> tuple[Overlaps] | None:
            found = overlap.of_dump(self.dump(), self.get("/v1/workers"), hashes)
            last[0] = self._contradiction(found, tokens, lora, salt)
            return None if last[0] else (found,)

        return wait_until(lambda: last[0], settled, 5.0)[0]

    def _contradiction(
        self, found: Overlaps, tokens: list[int], lora: str | None, salt: str | None
    ) -> str:
        """How the router's decisions differ from `found`. Empty: they agree.

        They may differ while events arrive.
        """
        if not self.get("/v1/workers"):
            return f"the router has no workers, but credits {found}" if found else ""
        q = {"method": "potential_loads", "tokens": tokens}
        q |= {"lora_name": lora or "", "cache_namespace": salt or ""}
        for load in self.post("/v1/route", q)["loads"]:
            o = found.get(Worker(load["worker_id"], load["dp_rank"]), overlap.Overlap(0, 0, 0))
            # The default weights of the tiers are 1, 0.75 and 0.25.
            worth = o.device + 0.75 * (o.host - o.device) + 0.25 * (o.disk - o.host)
            want, got = len(tokens) - int(worth * BLOCK), load["potential_prefill_tokens"]
            if got != want:
                return f"the dump has {o}; the decision computes {got} tokens, want {want}"
        return ""


class TestBed:
    """The directory and processes of one case. close() ends the processes."""

    def __init__(self, nats_server: str, blockyard: str) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-dynamo-"))
        self.discovery = self.dir / "discovery"
        self.model = model.write(self.dir / "model")
        self.discovery.mkdir()
        self._random = random.Random(20)
        self._blockyard, self._nats_server = blockyard, nats_server
        self._children: list[Child] = []
        self._on_close: list[Callable[[], None]] = []
        self.nats = ""
        self._nats: Child | None = None
        self.start_nats()

    def child(self, name: str, *command: str, piped: bool = False, dynamo: bool = False) -> Child:
        """Starts a process that ends with the case. dynamo: with the settings of Dynamo's parts."""
        env = clean_env()
        if dynamo:
            env |= {
                "DYN_DISCOVERY_BACKEND": "file",
                "DYN_FILE_KV": str(self.discovery),
                "DYN_EVENT_PLANE": "nats",
                "NATS_SERVER": self.nats,
                "DYN_LOG": "info",
                "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1]),
            }
        log = self.dir / f"{len(self._children)}-{name}.log"
        child = Child(name, command, log, env, piped)
        self._children.append(child)
        return child

    def ours(self, name: str, *arguments: str) -> Child:
        """Starts the blockyard binary."""
        return self.child(name, self._blockyard, *arguments, piped=True)

    def start_nats(self) -> None:
        """Starts the NATS server. A second call uses the same port."""
        directory = self.dir / "nats"
        directory.mkdir(exist_ok=True)
        port = self.nats.rpartition(":")[2] or "-1"
        flags = ["--addr=127.0.0.1", f"--port={port}", f"--ports_file_dir={directory}"]
        self._nats = self.child("nats-server", self._nats_server, *flags)
        file = directory / f"nats-server_{self._nats.pid}.ports"

        def url() -> str:
            try:
                return json.loads(file.read_text())["nats"][0]
            except (OSError, ValueError, LookupError):
                return ""

        self.nats = wait_until("nats-server serves", url)

    def stop_nats(self) -> None:
        """Kills the NATS server. Messages are lost until start_nats()."""
        assert self._nats is not None
        self._nats.kill9()

    def at_end(self, close: Callable[[], None]) -> None:
        """Calls close() at the end of the case. The last one registered is called first."""
        self._on_close.append(close)

    def free_port(self) -> int:
        """An unused TCP port."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    def engine_ports(self, count: int) -> list[int]:
        """Ports for the events of `count` engines.

        The agent binds two more ports for each engine, 1,000 and 2,000 above. All of them are free,
        and below the ports that the kernel gives to clients.
        """
        for _ in range(100):
            first = random.randrange(20_000, 30_000 - count)
            ports = range(first, first + count)
            if all(_is_free(p + offset) for p in ports for offset in (0, 1000, 2000)):
                return list(ports)
        raise AssertionError("no free ports for the events of engines")

    def probe(self, block: int = BLOCK) -> Probe:
        """Starts a real KvRouter."""
        command = [sys.executable, "-m", "live.probe", ENDPOINT, str(block)]
        return Probe(self.child("kv-router", *command, piped=True, dynamo=True))

    def mocker(self, *flags: str) -> Child:
        """Starts a real mock worker of Dynamo."""
        return self.child(
            "mocker",
            *[sys.executable, "-m", "dynamo.mocker"],
            f"--model-path={self.model}",
            "--model-name=tiny",
            f"--endpoint=dyn://{ENDPOINT}",
            f"--block-size={BLOCK}",
            "--max-model-len=4096",
            "--speedup-ratio=50",
            "--event-plane=nats",
            "--discovery-backend=file",
            *flags,
            dynamo=True,
        )

    def router(self, *flags: str) -> Router:
        """Starts Blockyard's router."""
        nats = f"--nats={self.nats}"
        return Router(self.ours("router", "router", nats, "--control=127.0.0.1:0", *flags))

    def follower(self) -> Router:
        """Starts Blockyard's router with Dynamo's workers as sources."""
        where = f"--dynamo-discovery={self.discovery}"
        return self.router(where, f"--dynamo-endpoint={ENDPOINT}")

    def prompt(self, blocks: int) -> list[int]:
        """A random prompt of `blocks` blocks and one token."""
        count = blocks * BLOCK + 1
        return [self._random.randrange(4, model.VOCABULARY) for _ in range(count)]

    def supports(self, command: str, flag: str) -> None:
        """Raises Skipped unless the blockyard command has the flag."""
        text = subprocess.run([self._blockyard, command, "--help"], capture_output=True, text=True)
        if flag not in text.stdout:
            raise Skipped(f"blockyard {command} has no {flag}")

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(text for c in self._children if (text := c.tail()))

    def close(self, keep: bool) -> None:
        """Ends every process, the last one first, and removes the directory."""
        for child in reversed(self._children):
            child.close()
        for close in reversed(self._on_close):
            close()
        if not keep:
            shutil.rmtree(self.dir, ignore_errors=True)


def _is_free(port: int) -> bool:
    """Whether a server can bind a TCP port on every address."""
    with socket.socket() as s:
        try:
            s.bind(("", port))
        except OSError:
            return False
    return True


def default_binaries() -> tuple[str, str]:
    """The paths of nats-server and blockyard: $BLOCKYARD_BIN and its directory, else bin."""
    root = pathlib.Path(__file__).resolve().parents[3]
    blockyard = pathlib.Path(os.environ.get("BLOCKYARD_BIN") or root / "bin" / "blockyard")
    return str(blockyard.with_name("nats-server")), str(blockyard)
