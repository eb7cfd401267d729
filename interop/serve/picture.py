"""The picture of a table: shares of cached tokens and times to the first token, as SVG."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from html import escape

from serve.report import Figures, Interval, Runs, interval

_TITLES = {
    "none": "no tier",
    "native": "vLLM's own host tier",
    "lmcache": "LMCache",
    "agent": "Blockyard's agent",
}
_COLOURS = {
    "round-robin": "#b8c0cc",
    "vllm-router-cache_aware": "#8fb3d9",
    "vllm-router-kv_aware": "#4f86c0",
    "smg-cache_aware": "#9d8cc4",
    "blockyard": "#d9822b",
}
_WIDTH, _LEFT, _PANEL, _GAP, _TOP = 980, 60, 210, 84, 80
_STYLE = """
  text { font-family: "DejaVu Sans", Verdana, Helvetica, Arial, sans-serif }
  text { font-size: 13px; fill: #1b2430 }
  .page { fill: #ffffff }
  .small { font-size: 11px; fill: #4a5667 }
  .small { paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
  .axis { stroke: #8793a5 }
  .bound { stroke: #1b2430; stroke-dasharray: 5 4 }
  .error { stroke: #1b2430 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .page { fill: #161b22 }
    .small { fill: #a9b4c2; stroke: #161b22 }
    .axis { stroke: #6b7686 }
    .bound, .error { stroke: #e6edf3 }
  }
"""


def draw(runs: Runs) -> str:
    """Two rows of bars with 95 % intervals, grouped by tier, a colour for each router."""
    routers = list(dict.fromkeys(router for _, router in runs))
    parts = [f'<rect width="{_WIDTH}" height="{2 * (_PANEL + _GAP) + _TOP}" class="page"/>']
    x = _LEFT
    for router in routers:
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{_COLOURS[router]}"/>')
        parts.append(f'<text x="{x + 18}" y="25">{escape(router)}</text>')
        x += 46 + 8 * len(router)
    infinite = 100 * statistics.fmean(f.infinite for found in runs.values() for f in found)
    title = f"prompt tokens from cache, %; the dashed line, {infinite:.0f}, is a cache without limits"
    full = 1.15 * infinite
    y = _TOP + _PANEL * (1 - infinite / full)
    parts.append(_line("bound", _LEFT, y, _WIDTH - 20, y))
    parts += _panel(runs, routers, _TOP, title, full, _share)
    highest = max(i.mean + i.half for i in map(_first, runs.values()))
    top = _TOP + _PANEL + _GAP
    parts += _panel(runs, routers, top, "mean time to the first token, ms", highest, _first)
    height = 2 * (_PANEL + _GAP) + _TOP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">\n'
        f"<title>Cached share and time to the first token by cache tier and router</title>\n"
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _share(found: list[Figures]) -> Interval:
    return interval(100 * f.share for f in found)


def _first(found: list[Figures]) -> Interval:
    return interval(f.first for f in found)


def _panel(
    runs: Runs,
    routers: list[str],
    top: float,
    title: str,
    highest: float,
    measure: Callable[[list[Figures]], Interval],
) -> list[str]:
    tiers = list(dict.fromkeys(tier for tier, _ in runs))
    bottom, group = top + _PANEL, (_WIDTH - _LEFT - 20) / len(tiers)
    bar = 0.8 * group / len(routers)
    parts = [f'<text x="{_LEFT}" y="{top - 24}">{escape(title)}</text>']
    parts.append(_line("axis", _LEFT, bottom, _WIDTH - 20, bottom))
    for i, tier in enumerate(tiers):
        start = _LEFT + i * group + 0.1 * group
        middle = start + 0.4 * group
        label = escape(_TITLES[tier])
        parts.append(f'<text x="{middle:.0f}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
        for j, router in enumerate(routers):
            if (tier, router) not in runs:
                continue
            found = measure(runs[tier, router])
            height, error = (_PANEL * v / highest for v in (found.mean, found.half))
            x, y = start + j * bar, bottom - height
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" height="{height:.1f}" '
                f'fill="{_COLOURS[router]}"/>'
            )
            centre = x + bar / 2 - 1
            low, high = min(y + error, bottom), max(y - error, top - 8)
            parts.append(_line("error", centre, high, centre, low))
            parts.append(
                f'<text class="small" x="{centre:.1f}" y="{high - 4:.1f}" '
                f'text-anchor="middle">{found.mean:.0f}</text>'
            )
    return parts


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
