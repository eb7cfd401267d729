"""A real Envoy with the configuration of docs/envoy.md."""

from __future__ import annotations

import pathlib
import re
import socket
import subprocess
from collections.abc import Sequence

from e2e.case import free_ports
from front.server import VllmServer
from tests.agentproc import end_process, wait_until

_REPOSITORY = pathlib.Path(__file__).parents[2]
_SCRIPT = _REPOSITORY / "scripts" / "envoy-env.sh"
_INSTALL_SECONDS = 600.0
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
# The ports in docs/envoy.md.
_CLIENTS, _ROUTER, _FIRST_WORKER = 8080, 9002, 8001


class Envoy:
    """Envoy in front of servers. The constructor waits until Envoy listens.

    ext_proc: address of the router's endpoint picker. directory: for the configuration and the
    log.
    """

    def __init__(
        self, directory: pathlib.Path, ext_proc: str, servers: Sequence[VllmServer]
    ) -> None:
        installed = subprocess.run(
            [str(_SCRIPT)], stdout=subprocess.PIPE, timeout=_INSTALL_SECONDS, check=True, text=True
        )
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        ports = {_CLIENTS: port, _ROUTER: int(ext_proc.rpartition(":")[2])}
        for number, server in enumerate(servers):
            ports[_FIRST_WORKER + number] = int(server.url.rpartition(":")[2])
        file = directory / "envoy.yaml"
        file.write_text(_configuration(ports))
        self._log = directory / "envoy.log"
        command = [installed.stdout.strip(), "-c", str(file), "--concurrency", "1"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--disable-hot-restart", "-l", "warning"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until("Envoy listens", lambda: self._listens(port), _START_SECONDS, 0.05)
        except AssertionError:
            self.close()
            raise

    def _listens(self, port: int) -> bool:
        assert self._process.poll() is None, f"Envoy has ended\n{self.log()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def log(self) -> str:
        """The end of the log, for error messages."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"  envoy: {line[:600]}" for line in lines[-40:])

    def close(self) -> None:
        """Ends Envoy. May be called again."""
        end_process(self._process, _STOP_SECONDS)


def _configuration(ports: dict[int, int]) -> str:
    """The first block of YAML in docs/envoy.md, with other ports. ports: new ones by those."""
    page = (_REPOSITORY / "docs" / "envoy.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks, "docs/envoy.md has no configuration"
    found = [int(port) for port in re.findall(r"port_value: (\d+)\}", blocks[0])]
    assert sorted(found) == sorted(ports), f"docs/envoy.md has the ports {found}, want {ports}"
    return re.sub(
        r"port_value: (\d+)\}", lambda m: f"port_value: {ports[int(m[1])]}}}", blocks[0]
    )
