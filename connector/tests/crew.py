"""An engine of several workers over vLLM's own scheduler, without a model.

The workers have real KV tensors and the connector's real worker role. Their forward pass writes
numbers that depend on all tokens up to a position, on the rank and on the layer. So every read of
KV that a load or vLLM's own cache has brought can be compared. The records between the roles are
pickled, as between vLLM's processes.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Sequence, Set

from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from blockyard.vllm.geometry import Ranks
from blockyard.work import Load, Work
from tests.crewconfig import CONFIG, VOCABULARY, kv_cache, set_rank, vllm_config
from tests.crewworker import DRAFT, ROW, TOKENS, Worker


def next_token(tokens: Sequence[int]) -> int:
    return zlib.crc32(repr(list(tokens)).encode()) % VOCABULARY


class Crew:
    """An engine of tp x pp workers. mla: all tensor-parallel ranks have equal KV. overlapping: the
    scheduler plans a step before the earlier step has ended. drafts: speculative tokens. eagle: a
    draft layer in the group of full attention, whose KV of a token depends on the next token.
    window, chunk: tokens that the layer of a first KV group beside full attention reads, 0 without
    that group. larger: that group's blocks in a block of full attention. dp_rank: of two, or None.
    short: whether all loads are short ones, or none is. policy: vLLM's for failed loads.

    damaged(worker, load): whether a worker's load fails. Then no LOAD of the agent begins loads.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        socket: str,
        *,
        tp: int = 1,
        pp: int = 1,
        mla: bool = False,
        overlapping: bool = False,
        drafts: int = 0,
        eagle: bool = False,
        window: int = 0,
        chunk: int = 0,
        larger: int = 1,
        dp_rank: int | None = None,
        short: bool = False,
        policy: str = "recompute",
        damaged: Callable[[int, Load], bool] | None = None,
    ) -> None:
        (directory / "config.json").write_text(json.dumps(CONFIG))
        extra = {"socket": socket, "weights": "crew", "short_loads": short}
        self.config = vllm_config(str(directory), extra, policy, tp, pp, overlapping, drafts)
        if eagle:
            self.config.speculative_config.method = "eagle"
        set_rank(self.config, dp_rank)
        replicas = tp if mla else 1
        # The first stage has one layer more than the others.
        stages = [["l0", "l1"]] + [[f"l{stage + 1}"] for stage in range(1, pp)]
        if window or chunk:
            stages = [["l0", DRAFT]] if eagle else [["l0"]]
        sizes = [len(layers) * TOKENS * ROW * 4 for layers in stages]
        caches = [kv_cache(layers, mla, replicas, window, chunk, larger) for layers in stages]
        self.align = TOKENS * larger
        self.behind = self.align if eagle else 0  # tokens that vLLM drops of a hit
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(TOKENS, sha256)
        self.scheduler = (AsyncScheduler if overlapping else Scheduler)(
            vllm_config=self.config,
            kv_cache_config=caches[0],
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=self.align,
            hash_block_size=TOKENS,
            log_stats=True,
        )
        self.workers = [
            Worker(self.config, caches[stage], Ranks(rank, tp, stage, pp, replicas), sizes)
            for stage in range(pp)
            for rank in range(tp)
        ]
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(
            {(n // tp, n % tp): worker.handshake for n, worker in enumerate(self.workers)}
        )
        self.aggregator = KVOutputAggregator(len(self.workers))
        self.overlapping, self.drafts, self.damaged = overlapping, drafts, damaged
        self._fix(short)
        self.pending: list = []
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[list[int]]] = {}  # by KV group
        self.began: dict[str, int] = {}  # tokens that a request had when it began to run
        self.rejected = self.computed = self.short = 0  # tokens, tokens, and steps with short loads

    def _fix(self, short: bool) -> None:
        """Makes the form of a load independent of measurements, and damaged() see every load."""
        self.scheduler.connector._scheduler.pace.fits_step = lambda blocks, alone: short
        for worker in self.workers if self.damaged is not None else ():
            worker.connector._worker.session._early = False

    def wait_connected(self, seconds: float = 60.0) -> None:
        session = self.scheduler.connector._scheduler.session
        self.settle(lambda: session.connected, "a session with the agent", seconds)

    def run(
        self, rid: str, prompt: Sequence[int], output: int, seconds: float = 120.0
    ) -> list[int]:
        """Runs one request to its end. Returns its output."""
        request = self.add(rid, prompt, output)
        deadline = time.monotonic() + seconds
        while rid in self.scheduler.requests:
            if time.monotonic() > deadline:
                raise AssertionError(f"{rid} does not end")
            self.step()
        return list(request.output_token_ids)

    def add(self, rid: str, prompt: Sequence[int], output: int) -> Request:
        """Adds a request to the scheduler. Its output can be compared with the crew's tokens."""
        request = Request(
            request_id=rid,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        request.sampling_params.update_from_generation_config({}, VOCABULARY + 1)
        self.tokens[rid] = list(prompt)
        self.scheduler.add_request(request)
        return request

    def settle(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Steps until condition() is true, as an idle engine with pending copies does."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}")
            self.step()

    def forget(self) -> bool:
        """Empties vLLM's own cache and overwrites the KV of all workers."""
        for worker in self.workers:
            for tensor in worker.kv.values():
                tensor.fill_(-1.0)
        return self.scheduler.reset_prefix_cache()

    def step(self, between: Callable[[], None] = lambda: None) -> None:
        """One step of the engine. between: what happens while the model runs, as an abort."""
        output = self.scheduler.schedule()
        self.pending.append((output, self._execute(output)))
        between()
        while len(self.pending) > (1 if self.overlapping and self.scheduler.requests else 0):
            ended, result = self.pending.pop(0)
            self.scheduler.update_from_output(ended, result)
        if self.drafts and not self.overlapping:
            self.scheduler.update_draft_token_ids(self._draft())
        if not output.total_num_scheduled_tokens:
            time.sleep(0.001)  # as vLLM does

    def _execute(self, output) -> ModelRunnerOutput:
        self.computed += output.total_num_scheduled_tokens
        sampled = {}
        connectors = [worker.connector for worker in self.workers]
        for number, one in enumerate(connectors):
            metadata = pickle.loads(pickle.dumps(output.kv_connector_metadata))
            if self.damaged is not None:
                self._damage(number, metadata.work)
            one.handle_preemptions(metadata)
            one.bind_connector_metadata(metadata)
            if output.has_sync_kv_loads:
                self.short += not number
                one.start_load_kv(None)
        invalid = [one.get_block_ids_with_load_errors() for one in connectors]
        for rid, computed in self._scheduled(output):
            sampled[rid] = self._forward(output, rid, computed, set().union(*invalid))
        results = []
        for one, blocks in zip(connectors, invalid, strict=True):
            if not output.has_sync_kv_loads:
                one.start_load_kv(None)
            ended = one.get_transfer_results(output.finished_req_ids)
            report = pickle.loads(pickle.dumps(one.build_connector_worker_meta()))
            results.append(self._result(sampled, ended, report, blocks))
            one.clear_connector_metadata()
        return self.aggregator.aggregate(results)

    def _damage(self, number: int, work: Work) -> None:
        """Gives the first slot of each damaged load another generation."""
        for n, load in enumerate(work.loads):
            if load.slots and self.damaged(number, load):
                slots = bytearray(load.slots)
                slots[8] ^= 1
                work.loads[n] = load._replace(slots=bytes(slots))

    def _scheduled(self, output) -> Iterator[tuple[str, int]]:
        """The requests of a step, and the tokens that were computed before. Updates the tables."""
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [list(ids) for ids in new.block_ids]
            self.began[new.req_id] = new.num_computed_tokens
            yield new.req_id, new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for n, rid in enumerate(cached.req_ids):
            more = cached.new_block_ids[n]
            if rid in cached.resumed_req_ids:
                self.tables[rid] = [[] for _ in self.tables[rid]]
            for table, ids in zip(self.tables[rid], more or ()):
                table += ids
            yield rid, cached.num_computed_tokens[n]

    def _forward(self, output, rid: str, computed: int, invalid: Set[int]) -> list[int]:
        """Computes a request's tokens of this step. Returns the tokens that it samples.

        A request with invalid blocks computes wrong numbers and samples a wrong token.
        """
        known, tables = self.tokens[rid], self.tables[rid]
        if not invalid.isdisjoint(tables[0]):
            wrong = [-1 - token for token in known]
            for worker in self.workers:
                for at in range(computed, computed + output.num_scheduled_tokens[rid]):
                    worker.write(at, tables, wrong, wrong)
            return [VOCABULARY - 1 - next_token(known)]
        if self.overlapping and self.drafts:
            # The scheduler counts drafts as accepted until it has the result of their step.
            computed = min(computed, len(known) - 1)
        end = computed + output.num_scheduled_tokens[rid]
        drafts = list(output.scheduled_spec_decode_tokens.get(rid, ()))
        inputs = known + drafts
        for worker in self.workers:
            if self.began.get(rid) == computed or self.damaged is not None:
                worker.check(computed, tables, known)
        sampled = self._sample(known, drafts) if end >= len(known) else []
        for worker in self.workers:
            for at in range(computed, min(end, len(inputs))):
                worker.write(at, tables, inputs, known + sampled)
        known += sampled
        return sampled

    def _sample(self, known: list[int], drafts: list[int]) -> list[int]:
        sampled = [next_token(known)]
        for draft in drafts:
            if draft != sampled[-1]:
                self.rejected += 1
                break
            sampled.append(next_token(known + sampled))
        return sampled

    def _draft(self) -> DraftTokenIds:
        """A right token and then a wrong one for every running request."""
        running = [request.request_id for request in self.scheduler.running]
        guesses = []
        for rid in running:
            right = next_token(self.tokens[rid])
            wrong = [(right + n) % VOCABULARY for n in range(1, self.drafts)]
            guesses.append([right, *wrong])
        return DraftTokenIds(running, guesses)

    def _result(self, sampled: dict, ended, report, invalid: Set[int]) -> ModelRunnerOutput:
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={rid: n for n, rid in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=KVConnectorOutput(
                finished_recving=ended.finished_recving,
                failed_recving=ended.failed_recving,
                invalid_block_ids=invalid,
                kv_connector_worker_meta=report,
            ),
        )

    def close(self) -> None:
        self.scheduler.shutdown()
        for worker in self.workers:
            worker.connector.shutdown()
