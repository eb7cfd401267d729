"""Time to the first token: computed, cached by the engine itself, and reloaded."""

from __future__ import annotations

import contextlib
import pathlib
import random
import statistics
import tempfile
import time
from typing import Any, NamedTuple

from tests.agentproc import AgentProcess, wait_until

from . import engine, model, report
from .child import Child

LENGTHS = (2048, 8192)
BATCH_TOKENS = 2048

# The compared engines. Those of Blockyard have an agent.
NONE = "no connector"
HOST, NATIVE_HOST = "blockyard, host", "vLLM's host tier"
DISK, NATIVE_DISK = "blockyard, disk", "vLLM's fs tier, same disk"
SHM, NATIVE_SHM = "blockyard, disk tier in memory", "vLLM's fs tier in memory"

# Comparisons: the time, Blockyard's engine, the other engine, and the limit of the ratio.
_COMPARED = (
    ("reload", HOST, NATIVE_HOST, 1.0),
    ("reload", DISK, NATIVE_DISK, 0.75),
    ("reload", SHM, NATIVE_SHM, 1.0),
    ("reload", DISK, NATIVE_SHM, 1.0),
    ("local", HOST, NONE, 1.0),
)

_HOST_BYTES = 2 << 30  # fits all prompts
_SETTLE_SECONDS = 0.7  # time for stores of engines that do not report the end of stores
_QUIET_SECONDS = 60.0
_SMALL_PAGES = "host extents have small pages"  # the agent's log
_WARM_TOKENS = 8 * model.BLOCK_TOKENS


class TokenFigures(NamedTuple):
    """Speed of reloads of 8,192 tokens relative to computing, and the text of the report.

    host_to_native, disk_to_native: the time of a reload from host memory relative to vLLM's own
    host tier, and from disk to vLLM's fs tier on the same disk, by tokens of the prompt.
    """

    host_to_native: dict[int, float]
    disk_to_native: dict[int, float]
    reload_host: float
    reload_disk: float
    equal: bool  # every reloaded token equals the computed token
    text: str


class Engine:
    """One engine, its agent if any, and its times in ms by prompt length."""

    def __init__(self, name: str, child: Child, agent: AgentProcess | None) -> None:
        self.name, self.stores = name, name != NONE
        self._child, self._agent = child, agent
        self.times: dict[tuple[str, int], list[float]] = {}
        self.unequal = 0
        self.promoted = self.loaded = 0
        self.small_pages = False  # the agent's host memory has small pages
        self._tokens: dict[tuple[int, ...], int] = {}

    def warm(self, draw: random.Random) -> None:
        """Runs prompts until a stored prompt is a hit: then the connector works."""
        deadline = time.monotonic() + _QUIET_SECONDS
        while True:
            tokens = engine.prompt(draw, _WARM_TOKENS)
            self._generate(tokens)
            self._settle()
            self._child.ask("reset_cache")
            if not self.stores or self._generate(tokens)["cached"] > 0:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: no hit of a stored prompt")
        self._child.ask("reset_cache")
        if self._agent is not None:
            self.small_pages = _SMALL_PAGES in self._agent.log_path.read_text()

    def compute(self, tokens: list[int]) -> None:
        """Times a new prompt, then the same prompt as a hit of the engine's own cache."""
        cold = self._generate(tokens)
        if cold["cached"]:
            raise RuntimeError(f"{self.name}: {cold['cached']} tokens of a new prompt were cached")
        self._settle()
        local = self._generate(tokens)
        self._expect_hit(tokens, local)
        self._note("cold", tokens, cold)
        self._note("local", tokens, local)
        self._tokens[tuple(tokens)] = cold["token"]
        self.unequal += local["token"] != cold["token"]
        self._child.ask("reset_cache")

    def reload(self, tokens: list[int]) -> None:
        """Times a prompt that only the connector still has."""
        before = self._promotions()
        again = self._generate(tokens)
        self._expect_hit(tokens, again)
        self._note("reload", tokens, again)
        self.unequal += again["token"] != self._tokens[tuple(tokens)]
        self.promoted += self._promotions() - before
        self.loaded += len(tokens) // model.BLOCK_TOKENS
        self._settle()
        self._child.ask("reset_cache")

    def _generate(self, tokens: list[int]) -> Any:
        return self._child.ask("generate", tokens=tokens)

    def _expect_hit(self, tokens: list[int], answer: dict[str, Any]) -> None:
        if answer["cached"] < len(tokens) - model.BLOCK_TOKENS:
            raise RuntimeError(
                f"{self.name}: {answer['cached']} of {len(tokens)} tokens were cached"
            )

    def _note(self, what: str, tokens: list[int], answer: dict[str, Any]) -> None:
        self.times.setdefault((what, len(tokens)), []).append(answer["ms"])

    def _settle(self) -> None:
        time.sleep(_SETTLE_SECONDS)
        if self._agent is not None:
            agent = self._agent
            wait_until("the agent is quiet", lambda: agent.stats()["quiet"], _QUIET_SECONDS)

    def _promotions(self) -> int:
        """The number of blocks that the agent has read from its disk tier."""
        if self._agent is None:
            return 0
        return sum(pool["promotions"] for pool in self._agent.stats()["pools"])


def first_tokens(work: pathlib.Path, repeats: int) -> TokenFigures:
    """Runs the same prompts on all engines in turn: first computes all, then reloads all."""
    directory = work / "medium"
    directory.mkdir()
    model.write(directory, model.MEDIUM, max(LENGTHS) + 64)
    draw = random.Random(3)
    prompts = [[engine.prompt(draw, n) for _ in range(repeats)] for n in LENGTHS]
    with contextlib.ExitStack() as stack:
        engines = _engines(stack, directory, work)
        for e in engines:
            e.warm(draw)
        for of_one_length in prompts:
            for turn, tokens in enumerate(of_one_length):
                for e in _rotated(engines, turn):
                    e.compute(tokens)
        storing = [e for e in engines if e.stores]
        for of_one_length in prompts:
            for turn, tokens in enumerate(of_one_length):
                for e in _rotated(storing, turn):
                    e.reload(tokens)
    return _figures({e.name: e for e in engines})


def _rotated(engines: list[Engine], turn: int) -> list[Engine]:
    first = turn % len(engines)
    return engines[first:] + engines[:first]


def _engines(
    stack: contextlib.ExitStack, directory: pathlib.Path, work: pathlib.Path
) -> list[Engine]:
    """Starts one engine without a connector, and one for each tier of Blockyard and of vLLM.

    The tiers are host memory for all prompts, and files behind host memory for about one prompt.
    The files of both are on the same disk, and in another pair of engines in shared memory.
    """
    small = max(LENGTHS) * model.MEDIUM.token_bytes * 3 // 2
    memory = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    agents = {HOST: stack.enter_context(AgentProcess(host_size=str(_HOST_BYTES)))}
    connectors = {NONE: None, HOST: None, NATIVE_HOST: engine.native("HostTier", _HOST_BYTES)}
    for place, ours, native in ((work, DISK, NATIVE_DISK), (memory, SHM, NATIVE_SHM)):
        flags = [f"--disk-dir={place}/ours", "--disk-filter=none"]
        agents[ours] = stack.enter_context(
            AgentProcess(host_size=str(small), disk_size="4GiB", flags=flags)
        )
        tiers = [{"type": "fs", "root_dir": f"{place}/native"}]
        connectors[native] = engine.native("FileTier", small, tiers)
    for name, agent in agents.items():
        connectors[name] = engine.ours(agent.socket)
    arguments = {
        "max_model_len": max(LENGTHS) + 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": BATCH_TOKENS,
        "num_gpu_blocks_override": 2 * max(LENGTHS) // model.BLOCK_TOKENS + 64,
    }
    engines = []
    for name, connector in connectors.items():
        options = {"model": str(directory), "connector": connector, "arguments": arguments}
        child = Child(name, "ttft", options, work / f"ttft-{len(engines)}.log")
        stack.callback(child.close)
        child.start()
        engines.append(Engine(name, child, agents.get(name)))
    return engines


def _figures(engines: dict[str, Engine]) -> TokenFigures:
    cold = {n: engines[NONE].times["cold", n] for n in LENGTHS}
    rows = []
    for e in engines.values():
        row = [e.name]
        for n in LENGTHS:
            for what in ("cold", "local", "reload"):
                times = e.times.get((what, n))
                row.append(report.number(statistics.median(times)) if times else "-")
                if what != "cold":
                    row.append(report.number(report.paired(cold[n], times)) if times else "-")
        rows.append(row)
    header = ["engine"]
    for n in LENGTHS:
        header += [f"{n}: cold", "local", "x", "reload", "x"]
    text = report.table(
        "Median time to the first token in ms, and speed relative to computing without a connector "
        "(x, median of the rounds)",
        header,
        rows,
    )
    for name in (DISK, SHM):
        e = engines[name]
        text += f"  {name}: the agent read {e.promoted} of {e.loaded} blocks from its disk tier\n"
        if e.small_pages:
            text += f"  {name}: host memory has small pages, so that reads from disk take longer\n"
    unequal = sum(e.unequal for e in engines.values())
    text += f"  tokens that differ from the computed tokens: {unequal}\n"
    longest = max(LENGTHS)
    return TokenFigures(
        {n: _ratio(engines, "reload", n, HOST, NATIVE_HOST) for n in LENGTHS},
        {n: _ratio(engines, "reload", n, DISK, NATIVE_DISK) for n in LENGTHS},
        report.paired(cold[longest], engines[HOST].times["reload", longest]),
        report.paired(cold[longest], engines[DISK].times["reload", longest]),
        unequal == 0,
        text + _verdicts(engines),
    )


def _ratio(engines: dict[str, Engine], what: str, tokens: int, ours: str, theirs: str) -> float:
    """The median ratio of the times of two engines."""
    return report.paired(engines[ours].times[what, tokens], engines[theirs].times[what, tokens])


def _verdicts(engines: dict[str, Engine]) -> str:
    lines = []
    for what, ours, theirs, limit in _COMPARED:
        for n in LENGTHS:
            ratio = _ratio(engines, what, n, ours, theirs)
            lines.append(report.verdict(f"{what} of {n}, {ours} to {theirs}", ratio, limit, "x"))
    return "\n".join(lines) + "\n"
