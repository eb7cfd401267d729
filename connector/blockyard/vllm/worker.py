"""The worker role in vLLM: registers KV tensors once, then queues copies in a WorkerSession.

The session's thread makes the copies. Hooks queue records and return. A step without copies costs a
few attribute lookups.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from blockyard.ended import NO_LOADS
from blockyard.frames import RegisterFields
from blockyard.mover import GeometryError
from blockyard.settings import Settings
from blockyard.vllm.facts import (
    Format,
    dp_rank_of,
    engine_version,
    format_of,
    parallel,
    worker_id_of,
)
from blockyard.vllm.geometry import (
    Ranks,
    Share,
    digest_of,
    group_ends,
    share_bytes,
    pages_of,
    share_of,
)
from blockyard.vllm.guard import Faults, guarded
from blockyard.vllm.kvgroups import is_hybrid
from blockyard.vllm.records import Handshake, StepMetadata, WorkerReport
from blockyard.vllm.stats import COPY_SECONDS, LOAD_BYTES, STORE_BYTES, BlockyardStats, Changes
from blockyard.work import Done, Work

log = logging.getLogger("blockyard.vllm")

NO_FORMAT = Format("", "", "", "")
# Limit for copies to end before sleep. vLLM calls suspend() after the requests have drained, and
# a store may still read the KV memory.
DRAIN_SECONDS = 10.0
# Limit of the wait for a load in a step that computes nothing. Without the wait the engine would
# see the end of the load 1 ms later, because vLLM sleeps 1 ms after a step that computes nothing.
# A request that arrives meanwhile waits too.
IDLE_SECONDS = 0.002
SHORT_SECONDS = 0.05  # a wait for short loads looks this often whether they are still expected
NO_BLOCKS: frozenset[int] = frozenset()


class VllmWorker:
    """The worker role. reason: why the connector stays off, or empty.

    open_session(device, pages, register, share, grouped) makes and starts a WorkerSession.
    gather(bytes) collects a number from every pipeline stage, in order.
    """

    def __init__(
        self,
        settings: Settings,
        vllm_config: Any,
        kv_cache_config: Any,
        reason: str,
        open_session: Callable[..., Any],
        ranks: Callable[[int], Ranks],
        gather: Callable[[int], Sequence[int]],
    ) -> None:
        self.settings = settings
        self.faults = Faults()
        self.session: Any = None
        self.handshake: Handshake | None = None
        self._config = vllm_config
        self._kv = kv_cache_config
        self._reason = reason
        self._grouped = not reason and is_hybrid(kv_cache_config)
        self._open = open_session
        self._ranks = ranks
        self._gather = gather
        self._stores = True
        self._begun: StepMetadata | None = None
        # The other ranks of data parallelism would wait for this rank's wait.
        self._may_wait = parallel(vllm_config, "data_parallel_size") == 1
        # WorkerSession.news at the last transfer_results(), report() and stats().
        self._results_at = self._report_at = self._stats_at = 0
        self._idle = False  # the step computes nothing, and a load is in flight
        self._failed: set[str] = set()
        # Results of other loads that a wait for short loads has taken.
        self._others: tuple[set[str], set[str]] = set(), set()
        self._invalid: set[int] = set()  # device blocks of short loads that failed
        self._skipped: Done | None = None
        self._asleep = False
        self._held: list[Work] = []
        self._share_bytes = 0  # of this worker, in a block
        self._copied = (0, 0)  # blocks loaded and stored at the last stats()
        self._changes = Changes((LOAD_BYTES, STORE_BYTES, COPY_SECONDS))

    def give_up(self, subject: Any) -> None:
        """Does nothing: only the scheduler role has requests."""

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """Describes vLLM's allocated KV tensors and connects."""
        if self._reason:
            self.handshake = self._refusal(self._reason)
            return
        ranks, pages, problem = Ranks(), [], ""
        try:
            ranks = self._ranks(int(getattr(self._kv, "kv_tp_replicas", 1) or 1))
            pages = pages_of(kv_caches, self._kv, self._grouped)
        except Exception as err:
            problem = str(err) or type(err).__name__
            if not isinstance(err, GeometryError):
                self.faults.note("register_kv_caches", err)
        # A failed stage calls gather too, because the other stages wait for its number.
        stages: Sequence[int] = ()
        try:
            stages = self._gather(0 if problem else share_bytes(pages))
        except Exception as err:
            self.faults.note("gather_stages", err)
            problem = problem or f"the pipeline stages cannot be asked: {err}"
        if not problem and min(stages) == 0:
            problem = "another pipeline stage cannot take part"
        if problem:
            log.error("the connector stays off: %s", problem)
            self.handshake = self._refusal(problem, ranks)
            return
        share = share_of(ranks, stages)
        self._stores = ranks.stores
        self._share_bytes = share.bytes
        register = RegisterFields(self._kv.num_blocks, share.bytes, share.offset)
        try:
            device = _device_of(kv_caches)
            self.session = self._open(device, pages, register, share, self._grouped)
            ends = group_ends(pages, share.offset) if self._grouped else ()
            self.handshake = self._describe(ranks, share, kv_caches, ends)
        except Exception as err:
            self.faults.note("register_kv_caches", err)
            self.handshake = self._refusal(str(err) or type(err).__name__, ranks)

    def _describe(
        self, ranks: Ranks, share: Share, kv_caches: Mapping[str, Any], ends: tuple[int, ...]
    ) -> Handshake:
        return Handshake(
            pp_rank=ranks.pp_rank,
            tp_rank=ranks.tp_rank,
            total_bytes=share.total,
            host=_host(),
            format=format_of(self._config, self._kv, digest_of(kv_caches, self._kv)),
            group_bytes=ends,
        )

    def _refusal(self, problem: str, ranks: Ranks | None = None) -> Handshake:
        ranks = ranks or Ranks()
        return Handshake(ranks.pp_rank, ranks.tp_rank, 0, _host(), NO_FORMAT, problem=problem)

    def take_handshake(self) -> Handshake | None:
        """The handshake for vLLM to deliver. Otherwise the first step's report has it."""
        handshake, self.handshake = self.handshake, None
        return handshake

    @guarded(lambda: None)
    def begin(self, metadata: Any) -> None:
        """Begins the copies of a step, once. vLLM passes the same metadata to several hooks."""
        if metadata is self._begun or not isinstance(metadata, StepMetadata):
            return
        self._begun = metadata
        self._idle = metadata.idle and self._may_wait
        work = metadata.work
        if metadata.short and (self.session is None or self._asleep):
            # A short load cannot wait: load() reports its blocks.
            names = dict(metadata.short)
            self._report([load for load in work.loads if load.rid in names], False)
            work = Work([load for load in work.loads if load.rid not in names], work.stores)
        if work:
            self._begin_work(work)

    def _begin_work(self, work: Work) -> None:
        if self.session is None:
            self._failed.update(load.rid for load in work.loads)
            self._report(work.stores, False)
            return
        if not self._stores and work.stores:
            # Another rank has the same bytes and copies them.
            self._report(work.stores, True)
            work = Work(work.loads, [])
        if self._asleep:
            self._report(work.stores, False)  # sleep has discarded the blocks
            if work.loads:
                self._held.append(Work(work.loads, []))
        elif work:
            self.session.begin(work)

    def _report(self, jobs: Sequence[Any], ok: bool) -> None:
        if self._skipped is None:
            self._skipped = Done()
        for job in jobs:
            self._skipped.add(job.job, ok)

    def load(self, metadata: Any) -> None:
        """Begins the copies of a step and waits for the short loads, before the forward pass."""
        self.begin(metadata)
        if getattr(metadata, "short", ()):
            pending = dict(metadata.short)
            try:
                self._await_short(pending)
            except Exception as err:
                self.faults.note("short loads", err)
            for ids in pending.values():  # not loaded, whatever the reason
                self._invalid.update(ids)

    def _await_short(self, pending: dict[str, tuple[int, ...]]) -> None:
        """Waits for the loads of requests. Removes those that succeed from `pending`.

        The copier ends every job. So the wait needs no limit, and no copy of a failed load
        continues while vLLM computes its blocks.
        """
        session, expected = self.session, set(pending)
        while session is not None:
            finished, failed = session.finished_loads()
            ours = finished & expected
            for rid in ours - failed:
                del pending[rid]
            self._others[0].update(finished - ours)
            self._others[1].update(failed - ours)
            expected = {rid for rid in expected - ours if session.expects(rid)}
            if not expected:
                return
            session.await_load(SHORT_SECONDS)

    def invalid_blocks(self) -> set[int]:
        """Device blocks of this step's short loads that are not loaded."""
        if not self._invalid:
            return NO_BLOCKS
        invalid, self._invalid = self._invalid, set()
        return invalid

    def transfer_results(self) -> tuple[Set[str], Set[str]]:
        """Requests whose loads have ended since the last call, and the failed ones among them.

        In a step that computes nothing the call waits for an end, IDLE_SECONDS at most.
        """
        session = self.session
        if session is None:
            failed, self._failed = self._failed, set()
            return failed, failed
        news = session.news
        if news == self._results_at and not self._idle and not self._others[0]:
            return NO_LOADS
        self._results_at = news
        return self._finished_loads()

    @guarded(lambda: NO_LOADS)
    def _finished_loads(self) -> tuple[Set[str], Set[str]]:
        if self._idle:
            self._idle = False
            self.session.await_load(IDLE_SECONDS)
        finished, failed = self.session.finished_loads()
        if self._others[0]:
            finished, failed = finished | self._others[0], failed | self._others[1]
            self._others = set(), set()
        return finished, failed

    def report(self) -> WorkerReport | None:
        """The report of this step for the scheduler role, or None."""
        news = 0 if self.session is None else self.session.news
        if news == self._report_at and self._skipped is None and self.handshake is None:
            return None
        self._report_at = news
        return self._make_report()

    @guarded(lambda: None)
    def _make_report(self) -> WorkerReport | None:
        done = mapped = None
        if self.session is not None:
            done, mapped = self.session.done(), self.session.mapped()
        if self._skipped is not None:
            if done is None:
                done = self._skipped
            else:
                done.merge(self._skipped)
            self._skipped = None
        if done is None and mapped is None and self.handshake is None:
            return None
        handshake, self.handshake = self.handshake, None
        handshakes = () if handshake is None else (handshake,)
        return WorkerReport(done, handshakes, () if mapped is None else (mapped,))

    def stats(self) -> BlockyardStats | None:
        """What this worker has copied since the last call. None without an ended copy."""
        session = self.session
        if session is None or session.news == self._stats_at:
            return None
        self._stats_at = session.news
        return self._make_stats()

    @guarded(lambda: None)
    def _make_stats(self) -> BlockyardStats | None:
        loaded, stored, micros = self.session.copied()
        if (loaded, stored) == self._copied:
            return None
        self._copied = loaded, stored
        size = self._share_bytes
        return BlockyardStats(self._changes.of((loaded * size, stored * size, micros / 1e6)))

    def suspend(self) -> None:
        """Waits until no copy uses the KV tensors' memory, which vLLM is about to free.

        Raises RuntimeError when copies do not end. Then vLLM must keep the memory, and this worker
        stays awake.
        """
        self._asleep = True
        if self.session is not None and not self.session.wait(DRAIN_SECONDS):
            self.resume()
            raise RuntimeError(
                f"Blockyard: copies still use the KV cache's memory after {DRAIN_SECONDS} s;"
                " the engine cannot sleep now"
            )

    @guarded(lambda: None)
    def resume(self) -> None:
        """Continues after sleep. The KV tensors have their old addresses."""
        self._asleep = False
        held, self._held = self._held, []
        for work in held:
            self._begin_work(work)

    def shutdown(self) -> None:
        """Ends the session after the copies in flight."""
        if self.session is not None:
            self.session.close()
            self.session = None


def _device_of(kv_caches: Mapping[str, Any]) -> str:
    """ "cpu", or "cuda:N" with this process's device number."""
    first = next(iter(kv_caches.values()))
    device = (first[0] if isinstance(first, (list, tuple)) else first).device
    return device.type if device.index is None else f"{device.type}:{device.index}"


def _host() -> str:
    """The node's identity: equal for two workers exactly if one agent can serve both."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def worker_ranks(vllm_config: Any, replicas: int) -> Ranks:
    """This process's ranks, from vLLM's process groups."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tp, pp = get_tp_group(), get_pp_group()
    if replicas < 1 or tp.world_size % replicas:
        raise GeometryError(f"kv_tp_replicas {replicas}: want a divisor of {tp.world_size}")
    return Ranks(tp.rank_in_group, tp.world_size, pp.rank_in_group, pp.world_size, replicas)


def gather_stages(own: int) -> Sequence[int]:
    """The numbers of all pipeline stages, in order. All stages must call it at the same time."""
    from vllm.distributed.parallel_state import get_pp_group

    group = get_pp_group()
    if group.world_size == 1:
        return [own]
    import torch.distributed

    numbers: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(numbers, own, group=group.cpu_group)
    return numbers


def identity_fields(vllm_config: Any, settings: Settings) -> dict[str, Any]:
    """Worker id, data-parallel rank and engine name, equal in all processes of a rank."""
    return {
        "worker_id": worker_id_of(vllm_config, settings),
        "dp_rank": dp_rank_of(vllm_config),
        "engine": f"vllm {engine_version()}",
    }
