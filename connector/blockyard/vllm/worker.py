"""The worker's side in vLLM: KV tensors registered once, then copies handed to a WorkerSession.

The copies run in the session's thread. Hooks pass records on and return; a step in which nothing
is to be copied costs a few attribute lookups.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockyard.frames import RegisterFields
from blockyard.mover import GeometryError
from blockyard.settings import Settings
from blockyard.vllm.facts import Format, dp_rank_of, engine_version, format_of, worker_id_of
from blockyard.vllm.geometry import Ranks, Share, digest_of, pages_of, share_of
from blockyard.vllm.guard import Faults, guarded
from blockyard.vllm.records import Handshake, StepMetadata, WorkerReport
from blockyard.work import Done, Work

log = logging.getLogger("blockyard.vllm")

NO_FORMAT = Format("", "", "", "")
# vLLM tells connectors of a coming sleep when requests have drained; what a store still reads
# then has to end before the memory goes away.
DRAIN_SECONDS = 10.0


class VllmWorker:
    """The worker role. `reason` is why the connector stays off, empty when it does not.

    open_session(device, pages, register, share) makes and starts a WorkerSession; gather(bytes)
    collects a number from every pipeline stage, in order.
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
        self._open = open_session
        self._ranks = ranks
        self._gather = gather
        self._stores = True
        self._begun: StepMetadata | None = None
        self._failed: set[str] = set()
        self._skipped: Done | None = None
        self._asleep = False
        self._held: list[Work] = []

    def give_up(self, subject: Any) -> None:
        """Nothing to forget: requests live in the scheduler's role."""

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """vLLM has allocated its KV tensors: describe them and connect."""
        if self._reason:
            self.handshake = self._refusal(self._reason)
            return
        ranks, pages, problem = Ranks(), [], ""
        try:
            ranks = self._ranks(int(getattr(self._kv, "kv_tp_replicas", 1) or 1))
            pages = pages_of(kv_caches, self._kv)
        except Exception as err:
            problem = str(err) or type(err).__name__
            if not isinstance(err, GeometryError):
                self.faults.note("register_kv_caches", err)
        # All stages take part even if one has failed: the others wait for its number.
        stages: Sequence[int] = ()
        try:
            stages = self._gather(0 if problem else sum(page.bytes for page in pages))
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
        register = RegisterFields(self._kv.num_blocks, share.bytes, share.offset)
        try:
            self.session = self._open(_device_of(kv_caches), pages, register, share)
            self.handshake = self._describe(ranks, share, kv_caches)
        except Exception as err:
            self.faults.note("register_kv_caches", err)
            self.handshake = self._refusal(str(err) or type(err).__name__, ranks)

    def _describe(self, ranks: Ranks, share: Share, kv_caches: Mapping[str, Any]) -> Handshake:
        return Handshake(
            pp_rank=ranks.pp_rank,
            tp_rank=ranks.tp_rank,
            total_bytes=share.total,
            host=_host(),
            format=format_of(self._config, self._kv, digest_of(kv_caches, self._kv)),
        )

    def _refusal(self, problem: str, ranks: Ranks | None = None) -> Handshake:
        ranks = ranks or Ranks()
        return Handshake(ranks.pp_rank, ranks.tp_rank, 0, _host(), NO_FORMAT, problem=problem)

    def take_handshake(self) -> Handshake | None:
        """What vLLM carries to the scheduler. Not taken, it goes with the first step's report."""
        handshake, self.handshake = self.handshake, None
        return handshake

    @guarded(lambda: None)
    def begin(self, metadata: Any) -> None:
        """The copies of a step, once: vLLM shows the same metadata to several hooks."""
        if metadata is self._begun or not isinstance(metadata, StepMetadata):
            return
        self._begun = metadata
        if metadata.work:
            self._begin_work(metadata.work)

    def _begin_work(self, work: Work) -> None:
        if self.session is None:
            self._failed.update(load.rid for load in work.loads)
            self._report(work.stores, False)
            return
        if not self._stores and work.stores:
            # A neighbour holds the same bytes and copies them; this rank has nothing to add.
            self._report(work.stores, True)
            work = Work(work.loads, [])
        if self._asleep:
            self._report(work.stores, False)  # what the blocks had is gone
            if work.loads:
                self._held.append(Work(work.loads, []))
        elif work:
            self.session.begin(work)

    def _report(self, stores: Sequence[Any], ok: bool) -> None:
        if self._skipped is None:
            self._skipped = Done()
        for store in stores:
            self._skipped.add(store.job, ok)

    @guarded(lambda: (set(), set()))
    def transfer_results(self) -> tuple[set[str], set[str]]:
        """Requests whose loads have ended, and those among them that failed; each once."""
        if self.session is not None:
            return self.session.finished_loads()
        failed, self._failed = self._failed, set()
        return failed, failed

    @guarded(lambda: None)
    def report(self) -> WorkerReport | None:
        """What the scheduler's role must know of this step."""
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

    def suspend(self) -> None:
        """The KV tensors' memory is about to go away: returns when no copy uses it.

        Raises RuntimeError when copies do not end: vLLM must not take their memory then. This
        worker stays awake.
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
        """The KV tensors are back, at their old addresses."""
        self._asleep = False
        held, self._held = self._held, []
        for work in held:
            self._begin_work(work)

    def shutdown(self) -> None:
        """Ends the session; copies in flight end first."""
        if self.session is not None:
            self.session.close()
            self.session = None


def _device_of(kv_caches: Mapping[str, Any]) -> str:
    """ "cpu", or "cuda:N" with the number that is this process's."""
    device = next(iter(kv_caches.values())).device
    return device.type if device.index is None else f"{device.type}:{device.index}"


def _host() -> str:
    """What two workers have in common exactly if one agent can serve both."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def worker_ranks(vllm_config: Any, replicas: int) -> Ranks:
    """This process's place in the engine, from vLLM's process groups."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tp, pp = get_tp_group(), get_pp_group()
    if replicas < 1 or tp.world_size % replicas:
        raise GeometryError(f"kv_tp_replicas {replicas}: want a divisor of {tp.world_size}")
    return Ranks(tp.rank_in_group, tp.world_size, pp.rank_in_group, pp.world_size, replicas)


def gather_stages(own: int) -> Sequence[int]:
    """`own` of every pipeline stage, in their order. All stages call this at the same time."""
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
