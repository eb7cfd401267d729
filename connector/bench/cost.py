"""The cost of the hooks in every step, and the delay of loads."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.agentproc import AgentProcess

from . import engine, model, report
from .child import Child

RUNNING = (1, 64, 256)
LONG_PROMPT = 100_000  # tokens of the prompts for the first lookup

_ROUNDS = 2  # rounds of each connector, in turn
_MAX_TOKENS = 1024


class HookFigures(NamedTuple):
    """99th percentiles in microseconds, and the text of the report.

    to_plain: median of all hooks of a step in which no block completes, relative to the plain
    connector's.
    """

    step: dict[int, float]  # all hooks of a worker's step without work, by running requests
    idle_step: dict[int, float]  # the same of a connector that does nothing
    hook: dict[int, float]  # the scheduler's slowest hook, by running requests
    to_plain: dict[int, float]  # by running requests
    first_lookup: float  # the scheduler's slowest hook at the first lookup of a long prompt
    text: str


class LoadFigures(NamedTuple):
    """Milliseconds from the decision to the first copy, and the text of the report."""

    p50: float
    p99: float
    hook: float  # the scheduler's slowest hook in the meantime: 99th percentile in microseconds
    text: str


class _Decode:
    """The measurements of one connector with one number of running requests."""

    def __init__(self) -> None:
        self.scheduler: list[int] = []
        self.worker: list[int] = []
        self.quiet: list[int] = []  # the worker's steps without work
        self.hooks: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, answer: dict[str, Any]) -> None:
        self.scheduler += answer["scheduler"]
        self.worker += answer["worker"]
        self.quiet += [t for t, quiet in zip(answer["worker"], answer["quiet"]) if quiet]
        for name, calls in answer["scheduler_hooks"].items():
            self.hooks[name] += calls


_Results = dict[tuple[str, int, bool], _Decode]


def hooks(work: pathlib.Path, steps: int, prompts: int) -> HookFigures:
    """Measures the hooks of Blockyard's connector, of the plain one and of one that does nothing.

    A round has `steps` steps of each connector. Also measures the first lookup of `prompts` long
    prompts.
    """
    directory = work / "small"
    directory.mkdir()
    model.write(directory, model.SMALL, _MAX_TOKENS)
    arguments = {
        "max_model_len": _MAX_TOKENS,
        "max_num_seqs": max(RUNNING),
        "max_num_batched_tokens": 8192,
        "num_gpu_blocks_override": max(RUNNING) * 28,
    }
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(AgentProcess(host_size="512MiB"))
        files = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        children = {}
        for name, connector in (
            ("blockyard", engine.ours(agent.socket)),
            ("plain", engine.plain(files)),
            ("idle", engine.idle()),
        ):
            options = {
                "model": str(directory),
                "connector": connector,
                "arguments": arguments,
                "hits": name != "idle",
            }
            children[name] = Child(name, "hooks", options, work / f"hooks-{name}.log")
            stack.callback(children[name].close)
            children[name].start()
        results = _decode(children, steps)
        lookup = children["blockyard"].ask("first_lookup", tokens=LONG_PROMPT, count=prompts)
    return _hook_figures(results, lookup)


def _decode(children: dict[str, Child], steps: int) -> _Results:
    results: _Results = defaultdict(_Decode)
    for running in RUNNING:
        for spread in (True, False):
            for turn in range(_ROUNDS):
                for name in sorted(children, reverse=turn % 2 == 1):
                    answer = children[name].ask(
                        "decode", running=running, steps=steps, spread=spread
                    )
                    results[name, running, spread].add(answer)
    return results


def _hook_figures(results: _Results, lookup: dict[str, list[int]]) -> HookFigures:
    rows = []
    for (name, running, spread), ours in results.items():
        if name == "blockyard":
            others = (results[other, running, spread] for other in ("plain", "idle"))
            rows.append(_steps_row(running, spread, ours, *others))
    again = lookup.pop("again")[0]
    prompts = len(lookup["on_new_request"])
    step, idle_step, slowest, to_plain, hook_rows = {}, {}, {}, {}, []
    for running in RUNNING:
        both = [results["blockyard", running, spread] for spread in (True, False)]
        step[running] = _empty_step(both)
        idle = [results["idle", running, spread] for spread in (True, False)]
        idle_step[running] = _empty_step(idle)
        slowest[running] = _slowest(both[0].hooks)
        to_plain[running] = _to_plain(both[1], results["plain", running, False])
        for hook, calls in both[0].hooks.items():
            hook_rows.append(_hook_row(f"{hook}, {running} running", calls))
    for hook, calls in lookup.items():
        hook_rows.append(_hook_row(f"{hook}, {LONG_PROMPT} tokens", calls))
    text = report.table(
        "Hooks of one step in µs, of Blockyard, the plain connector and one that does nothing "
        "(idle). Requests complete their blocks in different steps (spread) or in the same step "
        "(same).",
        ["running", "scheduler p50", "p99", "plain p50", "p99", "p50 ratio"]
        + ["worker p50", "p99", "plain p50", "p99", "p50 ratio", "both", "empty p99"]
        + ["idle scheduler p50", "p99", "idle worker p50", "p99"],
        rows,
    )
    text += report.table(
        f"The scheduler's hooks in µs. vLLM repeated the lookups of {prompts} long prompts {again} "
        "times.",
        ["hook", "calls", "p50", "p99", "max"],
        hook_rows,
    )
    return HookFigures(step, idle_step, slowest, to_plain, _slowest(lookup), text)


def _empty_step(runs: list[_Decode]) -> float:
    """The larger 99th percentile of the worker's steps without work, in microseconds."""
    return max(report.microseconds(run.quiet, 0.99) for run in runs if run.quiet)


def _slowest(hooks: Mapping[str, list[int]]) -> float:
    """The largest 99th percentile of the hooks, in microseconds."""
    return max(report.microseconds(calls, 0.99) for calls in hooks.values())


def _to_plain(ours: _Decode, plain: _Decode) -> float:
    """The sum of both roles' medians, relative to that of the plain connector.

    When all requests complete their blocks in the same step, the median step completes none.
    """
    sums = [
        sum(report.microseconds(role, 0.5) for role in (one.scheduler, one.worker))
        for one in (ours, plain)
    ]
    return sums[0] / sums[1]


def _steps_row(
    running: int, spread: bool, ours: _Decode, plain: _Decode, idle: _Decode
) -> list[str]:
    row = [f"{running} {'spread' if spread else 'same'}"]
    for mine, theirs in ((ours.scheduler, plain.scheduler), (ours.worker, plain.worker)):
        figures = [report.microseconds(v, q) for v in (mine, theirs) for q in (0.5, 0.99)]
        row += [report.number(f) for f in figures]
        row.append(report.number(figures[0] / figures[2]))
    last = [_to_plain(ours, plain), report.microseconds(ours.quiet, 0.99)]
    for role in (idle.scheduler, idle.worker):
        last += [report.microseconds(role, q) for q in (0.5, 0.99)]
    return [*row, *map(report.number, last)]


def _hook_row(name: str, calls: list[int]) -> list[str]:
    figures = (report.microseconds(calls, share) for share in (0.5, 0.99, 1.0))
    return [name, str(len(calls)), *(report.number(f) for f in figures)]


def load_start(work: pathlib.Path, loads: int) -> LoadFigures:
    """Measures the delay of loads while the engine computes a neighbour prompt of 8,192 tokens."""
    directory = work / "medium-loads"
    directory.mkdir()
    neighbour, chunk, tokens = 8192, 512, 4 * model.BLOCK_TOKENS
    model.write(directory, model.MEDIUM, neighbour + 64)
    arguments = {
        "max_model_len": neighbour + 64,
        "max_num_seqs": 4,
        # The neighbour gets half of a step. The other half is for the loading requests.
        "max_num_batched_tokens": 2 * chunk,
        "long_prefill_token_threshold": chunk,
        "num_gpu_blocks_override": 2 * neighbour // model.BLOCK_TOKENS,
    }
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(AgentProcess(host_size="4GiB"))
        options = {
            "model": str(directory),
            "connector": engine.ours(agent.socket),
            "arguments": arguments,
        }
        child = Child("load start", "loadstart", options, work / "load-start.log")
        stack.callback(child.close)
        child.start()
        child.ask("store", count=loads, tokens=tokens)
        answer = child.ask("load", neighbour_tokens=neighbour)
    delays = [d / 1e6 for d in answer["delays"]]
    p50, p99, most = (report.quantile(delays, share) for share in (0.5, 0.99, 1.0))
    text = report.table(
        f"From the decision to load to the first copy in ms, during a prompt of {neighbour} "
        f"tokens in chunks of {chunk}; {answer['steps']} steps",
        ["loads", "p50", "p99", "max"],
        [[str(len(delays)), report.number(p50), report.number(p99), report.number(most)]],
    )
    text += report.table(
        "The scheduler's hooks in the meantime, in µs",
        ["hook", "calls", "p50", "p99", "max"],
        [_hook_row(name, calls) for name, calls in answer["hooks"].items()],
    )
    return LoadFigures(p50, p99, _slowest(answer["hooks"]), text)
