"""Whether a load of a hit is expected to end sooner than the computation of its tokens.

The engine's own times decide: seconds of a step by its tokens, and seconds of a load and of its
copy by its blocks. Without enough measurements every hit is loaded, in steps of its own, so the
first loads measure themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

# Weight of a new sample is 1/_SAMPLES at least. A sample counts at most _CLIP times the average.
_SAMPLES = 8
_CLIP = 4.0
_ENOUGH = 3  # samples of a curve before it decides
# One step in so many is a sample while the engine runs steps of as many tokens as before.
_STEADY = 4
# A hit of so many blocks is always loaded, whatever was measured.
MOST_BLOCKS = 64
# One declined hit in so many is loaded, so that a load that has become faster is noticed.
PROBE = 32
# A step of more tokens for each request computes a prompt. It delays a load's report.
_LIGHT_TOKENS = 8
_MAX_STEPS = 64  # steps in flight, far more than any engine has
# Limit of the copy within a step when no other request waits for the step.
ALONE_SECONDS = 0.05

Line = Sequence[tuple[float, float]]


# An engine sleeps 1 ms after a step that computes nothing.
_REST_SECONDS = 0.001
_REST_TOKENS = 16384  # the answer for a longer prompt takes more time than that


def rest_seconds(alive: int, tokens: int, ranks: int) -> float:
    """How long the lookup of a prompt may keep an engine of `alive` requests waiting.

    Without an answer a request that is alone waits for the engine's sleep. Nobody waits beside it:
    no other request, and no other rank of data parallelism.
    """
    return _REST_SECONDS if alive == ranks == 1 and tokens <= _REST_TOKENS else 0.0


class Curve:
    """Measured seconds by size: an exponential average for each power of two."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[int, float, float]] = {}  # samples, size, seconds
        self._line: Line | None = None

    def add(self, size: int, seconds: float) -> None:
        """Adds a sample. size: 1 or more."""
        count, mean_size, mean = self._points.get(size.bit_length(), (0, float(size), seconds))
        if count >= _ENOUGH:
            seconds = min(max(seconds, mean / _CLIP), mean * _CLIP)
        count = min(count + 1, _SAMPLES)
        self._points[size.bit_length()] = (
            count,
            mean_size + (size - mean_size) / count,
            mean + (seconds - mean) / count,
        )
        self._line = None

    def line(self) -> Line:
        """The averages by rising size; a larger size takes no less time. Empty: too few samples."""
        if self._line is None:
            self._line = self._make_line()
        return self._line

    def _make_line(self) -> Line:
        if sum(count for count, _, _ in self._points.values()) < _ENOUGH:
            return ()
        line, most = [], 0.0
        for _, (_, size, seconds) in sorted(self._points.items()):
            most = max(most, seconds)
            line.append((size, most))
        return line


def seconds_at(line: Line, size: float, proportional: bool) -> float:
    """The seconds of a size on a line of one point or more.

    Beyond the last point the seconds grow in proportion to the size, or else like the last segment.
    """
    below = line[0]
    if size <= below[0]:
        return below[1]
    for point in line[1:]:
        if size <= point[0]:
            part = (size - below[0]) / (point[0] - below[0])
            return below[1] + part * (point[1] - below[1])
        below = point
    if proportional:
        return below[1] * size / below[0]
    if len(line) == 1:
        return below[1]
    before = line[-2]
    return below[1] + (size - below[0]) * (below[1] - before[1]) / (below[0] - before[0])


def prefill_seconds(steps: Line, tokens: int, beside: int, step_tokens: int) -> float:
    """The seconds to compute `tokens` in steps that each have `beside` tokens of other requests."""
    room = max(1, step_tokens - beside)
    full, rest = divmod(tokens, room)
    seconds = full * seconds_at(steps, room + beside, True) if full else 0.0
    return seconds + (seconds_at(steps, rest + beside, True) if rest else 0.0)


def worth_loading(
    loads: Line, steps: Line, blocks: int, hit: int, tokens: int, beside: int, step_tokens: int
) -> bool:
    """Whether the load of `blocks` is expected to save time. True without measurements.

    tokens: the request's tokens to compute without the load. hit: how many of them the load brings.
    """
    if blocks >= MOST_BLOCKS or not loads or not steps:
        return True
    saved = prefill_seconds(steps, tokens, beside, step_tokens)
    saved -= prefill_seconds(steps, max(1, tokens - hit), beside, step_tokens)
    return seconds_at(loads, blocks, False) <= saved


class Pace:
    """Measures an engine's steps and loads, and decides which hits are loaded.

    fixed: the user's own minimum of blocks; 0 means by measurement. block_tokens: tokens of a
    block. step_tokens: the engine's limit of tokens in a step. Times are in seconds of one
    monotonic clock. Only the engine's thread uses a Pace.
    """

    def __init__(self, fixed: int, block_tokens: int, step_tokens: int) -> None:
        self.declined = 0  # hits that are computed, because that is expected to be sooner
        self.steps = Curve()
        self.loads = Curve()
        self.copies = Curve()  # seconds of copying on the slowest worker, by blocks
        self._fixed = fixed
        self._least = fixed or 1
        self._block_tokens = block_tokens
        self._step_tokens = step_tokens
        self._flying: deque[tuple[float, int, bool]] = deque(maxlen=_MAX_STEPS)
        self._ended = 0.0  # end of the last step
        self._steady = 0  # tokens of the last step
        self._repeats = 0  # steps in a row before the last one that had as many
        self._beside = 0  # tokens of the last step that computed no prompt
        self._heavy = 0  # steps that computed a prompt
        self._loading: dict[str, tuple[float, int, int]] = {}

    def begin_step(self, tokens: int, requests: int, now: float) -> None:
        """Records a step that the engine's scheduler has planned."""
        light = tokens <= _LIGHT_TOKENS * requests
        if light:
            self._beside = tokens
        else:
            self._heavy += 1
        self._flying.append((now, tokens, light))

    def end_step(self, now: float) -> None:
        """Records the end of the oldest planned step. Steps of an engine end in their order."""
        if not self._flying:
            return
        began, tokens, _ = self._flying.popleft()
        ended, self._ended = self._ended, now
        if tokens != self._steady:
            self._steady, self._repeats = tokens, 0
        else:
            self._repeats += 1
            if self._repeats > _SAMPLES and self._repeats % _STEADY:
                return
        if tokens:
            self.steps.add(tokens, now - max(began, ended))

    def begin_load(self, rid: str, blocks: int, now: float) -> None:
        """Records the begin of a request's load."""
        clean = all(light for _, _, light in self._flying)
        self._loading[rid] = (now, blocks, self._heavy if clean else -1)

    def end_load(self, rid: str, ok: bool, now: float) -> None:
        """Records the end of a load. A load beside the computation of a prompt is no sample.

        The engine asks for ended loads once in a step, so such a load measures the step.
        """
        began, blocks, heavy = self._loading.pop(rid, (0.0, 0, -1))
        if ok and heavy == self._heavy:
            self.loads.add(blocks, now - began)

    def forget(self, rid: str) -> None:
        """Drops the load of a request that has ended."""
        self._loading.pop(rid, None)

    def fits_step(self, blocks: int, alone: bool) -> bool:
        """Whether the copy of `blocks` within a step is expected to take less than another step.

        blocks: of all loads within the step. False without measurements, and beside a load that
        has steps of its own: workers copy loads in their order, so the step would wait for both.
        alone: no other request waits for the step.
        """
        copies, steps = self.copies.line(), self.steps.line()
        if self._loading or not copies or not steps:
            return False
        limit = ALONE_SECONDS if alone else seconds_at(steps, max(1, self._beside), True)
        return seconds_at(copies, blocks, True) <= limit

    def accepts(self, blocks: int, tokens: int, short: bool = False) -> bool:
        """Whether a hit of `blocks` is loaded. tokens: to be computed without the load.

        short: the load takes no longer than its copy, because it needs no step.
        """
        if self._fixed or self._worth(blocks, tokens, short):
            return True
        self.declined += 1
        return self.declined % PROBE == 0

    def _worth(self, blocks: int, tokens: int, short: bool = False) -> bool:
        return worth_loading(
            self.copies.line() if short else self.loads.line(),
            self.steps.line(),
            blocks,
            blocks * self._block_tokens,
            tokens,
            min(self._beside, self._step_tokens - 1),
            self._step_tokens,
        )

    def least_blocks(self) -> int:
        """The smallest power of two of blocks that is loaded, for a prompt of one token more.

        The user's own minimum, if there is one. The answer follows the measurements by one power of
        two in a call, because vLLM waits for the call at the end of a step.
        """
        if self._fixed:
            return self._fixed
        if not self._worth_alone(self._least):
            self._least *= 2
        elif self._least > 1 and self._worth_alone(self._least // 2):
            self._least //= 2
        return self._least

    def _worth_alone(self, blocks: int) -> bool:
        return self._worth(blocks, blocks * self._block_tokens + 1)
