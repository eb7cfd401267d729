"""Figures and tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; nan without values."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def microseconds(nanoseconds: Iterable[float], share: float) -> float:
    """A quantile of nanoseconds, in microseconds."""
    return quantile(nanoseconds, share) / 1e3


def paired(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median ratio of ours to theirs over the rounds."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if math.isnan(value):
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A text table: the first column is aligned left, the others right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    out = [title]
    for line in lines:
        first = line[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        out.append("  " + "  ".join([first, *rest]).rstrip())
    return "\n".join(out) + "\n"


def verdict(what: str, value: float, limit: float, unit: str = "") -> str:
    """A line that compares a figure with its limit."""
    word = "ok  " if value <= limit else "MISS"
    return f"  {word}  {what}: {number(value)}{unit}, limit {number(limit)}{unit}"
