"""A child process with all processes that it starts."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess

from tests.agentproc import wait_until


class Session:
    """The processes of an engine. The child was started with start_new_session.

    All processes are in one session of the operating system, which identifies them even after the
    death of a parent.
    """

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self._shared: set[str] = set()

    def pids(self) -> list[int]:
        """Every living process."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue  # the process has just ended
            state, _, _, session = text.rpartition(")")[2].split()[:4]
            if int(session) == self.process.pid and state != "Z":
                found.append(int(entry.name))
        return found

    def terminate(self, seconds: float) -> None:
        """Asks the child to end and waits for it, at most `seconds`."""
        self.note_shared_memory()
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass  # the caller kills it

    def kill9(self, seconds: float) -> None:
        """Kills every process and unlinks their shared memory.

        Python's resource tracker is not killed. It unlinks semaphores and ends after the others,
        within `seconds`.
        """
        self.note_shared_memory()
        for pid in self.pids():
            try:
                if b"resource_tracker" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # the process has just ended
        self.process.wait()
        wait_until(
            f"every process of {self.process.pid} has ended", lambda: not self.pids(), seconds
        )
        for path in self._shared:
            pathlib.Path(path).unlink(missing_ok=True)

    def note_shared_memory(self) -> None:
        """Records the shared memory files that the processes have mapped.

        Only files with the names of Python, vLLM and its libraries count.
        """
        for pid in self.pids():
            try:
                maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
            except OSError:
                continue
            self._shared.update(re.findall(r"/dev/shm/(?:psm_|sem\.|vllm|nccl|torch_)\S+", maps))
