"""Figures of runs: means over seeds, intervals and tables."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from serve.client import Result
from serve.workload import Ideal

# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Figures(NamedTuple):
    """The figures of one run. Shares are of all prompt tokens, times are milliseconds."""

    share: float
    shares: dict[str, float]  # by scenario
    infinite: float  # the share that an infinite cache would serve
    first: float  # mean time to the first token
    first_p99: float
    gap: float  # mean time between tokens
    gap_p99: float
    largest: float  # share of the requests that the busiest server has answered


def figures(results: list[Result], ideal: list[Ideal], served: list[float]) -> Figures:
    """The figures of a run's answers. served: requests by server.

    ValueError when an engine has counted other tokens than the ideal: then the shares could not be
    compared.
    """
    for number, (result, want) in enumerate(zip(results, ideal, strict=True)):
        if result.prompt != want.prompt:
            raise ValueError(f"request {number}: {result.prompt} tokens, want {want.prompt}")
    gaps = [gap for r in results for gap in r.gaps]
    first = [r.first for r in results]
    prompts = sum(r.prompt for r in results)
    by_scenario: dict[str, list[Result]] = defaultdict(list)
    for r in results:
        by_scenario[r.scenario].append(r)
    return Figures(
        sum(r.cached for r in results) / prompts,
        {s: sum(r.cached for r in rs) / sum(r.prompt for r in rs) for s, rs in by_scenario.items()},
        sum(want.cached for want in ideal) / prompts,
        1e3 * statistics.fmean(first),
        1e3 * _quantile(first, 0.99),
        1e3 * statistics.fmean(gaps),
        1e3 * _quantile(gaps, 0.99),
        max(served) / sum(served),
    )


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Interval(NamedTuple):
    """A mean over seeds with its 95 % interval."""

    mean: float
    half: float  # half of the interval's width; 0 for one seed


def interval(values: Iterable[float]) -> Interval:
    """The mean of independent values and its 95 % interval by Student's t."""
    found = list(values)
    mean = statistics.fmean(found)
    if len(found) < 2:
        return Interval(mean, 0.0)
    quantile = _T[min(len(found) - 2, len(_T) - 1)]
    return Interval(mean, quantile * statistics.stdev(found) / len(found) ** 0.5)


Runs = dict[tuple[str, str], list[Figures]]  # by tier and router, a run for each seed


def table(runs: Runs) -> str:
    """One line for each pair of tier and router."""
    head = f"{'tier':<8} {'router':<24} {'cached':>14} {'infinite':>8} {'TTFT ms':>15} {'p99':>6} "
    head += f"{'between ms':>12} {'p99':>6} {'busiest':>7}  by scenario"
    lines = [head]
    for (tier, router), found in runs.items():
        share = interval(100 * f.share for f in found)
        first, gap = interval(f.first for f in found), interval(f.gap for f in found)
        infinite = 100 * statistics.fmean(f.infinite for f in found)
        scenarios = "  ".join(
            f"{s} {100 * statistics.fmean(f.shares[s] for f in found):.0f}" for s in found[0].shares
        )
        lines.append(
            f"{tier:<8} {router:<24} {share.mean:6.1f} ± {share.half:3.1f} % {infinite:6.1f} % "
            f"{first.mean:8.0f} ± {first.half:4.0f} {_mean(found, 'first_p99'):6.0f} "
            f"{gap.mean:6.1f} ± {gap.half:3.1f} {_mean(found, 'gap_p99'):6.0f} "
            f"{100 * _mean(found, 'largest'):5.0f} %  {scenarios}"
        )
    return "\n".join(lines)


def _mean(found: list[Figures], name: str) -> float:
    return statistics.fmean(getattr(f, name) for f in found)


def last_line(runs: Runs) -> str:
    """The line for scripts. Its first figures compare our router with our tier to the best other
    pair, its last ones the routers without a tier."""
    parts = []
    ours = runs.get(("agent", "blockyard"))
    rivals = [f for (tier, name), f in runs.items() if tier != "agent" and name != "blockyard"]
    if ours:
        infinite = _mean(ours, "infinite")
        parts += [f"cached_share={_mean(ours, 'share'):.3f}", f"infinite_share={infinite:.3f}"]
    if rivals:
        parts.append(f"best_peer_share={max(_mean(f, 'share') for f in rivals):.3f}")
    if ours:
        parts.append(f"ttft_ms={_mean(ours, 'first'):.0f}")
    if rivals:
        parts.append(f"best_peer_ttft_ms={min(_mean(f, 'first') for f in rivals):.0f}")
    alone = {name: f for (tier, name), f in runs.items() if tier == "none"}
    if mine := alone.pop("blockyard", None):
        parts.append(f"router_only_ttft_ms={_mean(mine, 'first'):.0f}")
    if alone:
        best = min(_mean(f, "first") for f in alone.values())
        parts.append(f"best_peer_router_only_ttft_ms={best:.0f}")
    return "bench-serve: " + " ".join(parts)
