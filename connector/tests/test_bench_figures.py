"""The last line of bench-connector: hooks beside the plain connector, reloads beside vLLM."""

from __future__ import annotations

import contextlib
import io
import pathlib
import unittest
from unittest import mock

try:
    from bench import __main__ as main
    from bench import cost, tokens
except ImportError:  # the benchmark needs numpy, as vLLM does
    main = None

LOOKUP = {"again": [3], "on_new_request": [2000]}


def decode(scheduler: int, worker: int, completing: int) -> cost._Decode:
    """Steps of so many nanoseconds, of which one in four takes `completing` times as long."""
    made = cost._Decode()
    made.scheduler = [scheduler, scheduler, scheduler, scheduler * completing] * 8
    made.worker = [worker, worker, worker, worker * completing] * 8
    made.quiet = [worker] * 24
    made.hooks["build_connector_meta"] = [scheduler] * 24
    return made


@unittest.skipIf(main is None, "the benchmark needs numpy; make test-vllm has it")
class Figures(unittest.TestCase):
    def text_of(self, part: str, figures: object) -> tuple[dict[str, str], str]:
        """The part's figures in the last line, and what it prints."""
        function = {"_hooks": (cost, "hooks"), "_tokens": (tokens, "first_tokens")}[part]
        out = io.StringIO()
        with mock.patch.object(*function, return_value=figures), contextlib.redirect_stdout(out):
            answer = getattr(main, part)(pathlib.Path("/nowhere"), True)
        return answer if part == "_hooks" else answer[0], out.getvalue()

    def test_hooks_beside_the_plain_connector_when_no_block_completes(self) -> None:
        results = {}
        for running, factor in zip(cost.RUNNING, (1, 2, 3), strict=True):
            for spread in (True, False):
                ours = 9000 if spread else 3000 * factor  # the steps of `spread` do not count
                results["blockyard", running, spread] = decode(ours, 1000 * factor, 100)
                results["plain", running, spread] = decode(6000, 2000, 2)
                results["idle", running, spread] = decode(100, 700 * factor, 1)
        found = cost._hook_figures(results, {name: list(v) for name, v in LOOKUP.items()})
        self.assertEqual(found.to_plain, {1: 0.5, 64: 1.0, 256: 1.5})
        line, text = self.text_of("_hooks", found)
        ratios = [line[f"hooks_vs_plain_{running}"] for running in cost.RUNNING]
        self.assertEqual(ratios, ["0.50", "1.00", "1.50"])
        floors = [line[f"step_us_p99_idle_{running}"] for running in cost.RUNNING]
        self.assertEqual(floors, ["0.7", "1.4", "2.1"])
        self.assertRegex(text, r"ok +64 running: all hooks to the plain connector's.*: 1.00x")
        self.assertRegex(text, r"MISS +256 running: all hooks to the plain connector's.*: 1.50x")

    def test_reloads_beside_the_tiers_of_vllm(self) -> None:
        engines = {}
        # Milliseconds of a reload of 2,048 and of 8,192 tokens.
        for name, reload in (
            (tokens.NONE, (1, 1)),
            (tokens.HOST, (10, 40)),
            (tokens.NATIVE_HOST, (20, 50)),
            (tokens.DISK, (30, 60)),
            (tokens.NATIVE_DISK, (40, 120)),
            (tokens.SHM, (7, 7)),
            (tokens.NATIVE_SHM, (9, 9)),
        ):
            one = engines[name] = tokens.Engine(name, None, None)
            for length, ms in zip(tokens.LENGTHS, reload, strict=True):
                one.times = {
                    **one.times,
                    **{(what, length): [1000.0] * 3 for what in ("cold", "local")},
                    ("reload", length): [ms, ms, 2 * ms],
                }
        line, _ = self.text_of("_tokens", tokens._figures(engines))
        names = [f"reload_{tier}_vs_native_{n}" for tier in ("host", "disk") for n in ("2k", "8k")]
        self.assertEqual([line[name] for name in names], ["0.50", "0.80", "0.75", "0.50"])


if __name__ == "__main__":
    unittest.main()
