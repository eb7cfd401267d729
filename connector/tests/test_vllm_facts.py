"""Values from vLLM's configuration: ids, endpoints, weights, namespaces, reasons to stay off."""

from __future__ import annotations

import os
import unittest
from dataclasses import replace
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from blockyard import consolidation
from blockyard.settings import Settings
from tests import vllm_fakes as fakes
from tests.vllm_fakes import FakeTensor, full, kv_config, vllm_config

fakes.require_vllm()

from blockyard.vllm import consolidated, facts  # noqa: E402
from blockyard.vllm.facts import Format, reachable  # noqa: E402
from blockyard.vllm.geometry import digest_of  # noqa: E402

SETTINGS = Settings()


class Ids(unittest.TestCase):
    def test_all_data_parallel_ranks_of_an_engine_have_one_id(self) -> None:
        ids = set()
        for rank in range(3):
            config = vllm_config(
                kv_transfer_config__engine_id=f"abc_dp{rank}",
                parallel_config__data_parallel_rank=rank,
                parallel_config__data_parallel_index=rank,
            )
            ids.add(facts.worker_id_of(config, SETTINGS))
            self.assertEqual(facts.dp_rank_of(config), rank)
        ids.add(facts.worker_id_of(vllm_config(kv_transfer_config__engine_id="abc"), SETTINGS))
        self.assertEqual(len(ids), 1)
        (number,) = ids
        self.assertTrue(1 <= number < 2**64)

    def test_other_engines_have_other_ids_and_the_setting_wins(self) -> None:
        other = vllm_config(kv_transfer_config__engine_id="abd")
        self.assertNotEqual(
            facts.worker_id_of(vllm_config(), SETTINGS), facts.worker_id_of(other, SETTINGS)
        )
        self.assertEqual(facts.worker_id_of(other, Settings(worker_id=7)), 7)

    def test_dense_models_keep_their_rank_in_the_index_alone(self) -> None:
        config = vllm_config(
            kv_transfer_config__engine_id="abc_dp2",
            parallel_config__data_parallel_rank=0,
            parallel_config__data_parallel_index=2,
        )
        self.assertEqual(facts.dp_rank_of(config), 2)
        plain = vllm_config(kv_transfer_config__engine_id="abc")
        self.assertEqual(facts.worker_id_of(config, SETTINGS), facts.worker_id_of(plain, SETTINGS))


class Steps(unittest.TestCase):
    def test_the_tokens_of_a_step_are_told_where_the_configuration_has_them(self) -> None:
        for scheduler, tokens in (
            (Bag(max_num_batched_tokens=8192), 8192),
            (Bag(max_num_batched_tokens=None), 0),
            (Bag(max_num_batched_tokens=-1), 0),
            (Bag(), 0),
            (None, 0),
        ):
            config = vllm_config(scheduler_config=scheduler)
            self.assertEqual(facts.batched_tokens_of(config), tokens)
        self.assertEqual(facts.batched_tokens_of(vllm_config()), 0)


class Endpoints(unittest.TestCase):
    def test_where_a_neighbour_finds_the_events(self) -> None:
        for endpoint, rank, bound, want in (
            ("tcp://*:5557", 0, False, "tcp://127.0.0.1:5557"),
            ("tcp://*:5557", 3, False, "tcp://127.0.0.1:5560"),
            ("tcp://[::]:5557", 0, False, "tcp://[::1]:5557"),
            ("tcp://10.0.0.1:5558", 1, True, "tcp://10.0.0.1:5559"),
            ("tcp://10.0.0.1:5557", 0, False, ""),  # vLLM connects there
            ("tcp://*:0", 0, False, ""),
            ("tcp://*:65535", 1, False, ""),
            ("tcp://*", 0, False, ""),
            ("ipc:///tmp/events", 0, False, "ipc:///tmp/events"),
            ("ipc:///tmp/events", 1, False, ""),
            ("inproc://events", 0, False, ""),
            ("", 0, True, ""),
        ):
            with self.subTest(endpoint, rank=rank):
                self.assertEqual(reachable(endpoint, rank, bound), want)

    def test_hello_gets_them_when_events_are_on(self) -> None:
        events = Bag(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint="tcp://*:5557",
            replay_endpoint="tcp://*:5558",
            topic="kv",
        )
        config = vllm_config(kv_events_config=events)
        self.assertEqual(
            facts.events_of(config),
            {
                "events_endpoint": "tcp://127.0.0.1:5557",
                "replay_endpoint": "tcp://127.0.0.1:5558",
                "events_topic": "kv",
            },
        )
        events.enable_kv_cache_events = False
        self.assertEqual(facts.events_of(config), {})
        self.assertEqual(facts.events_of(vllm_config()), {})


class Consolidated(unittest.TestCase):
    """HELLO's fields for the consolidated stream."""

    def stream(self, endpoints: Any = None, rank: int | None = 0, **variables: str) -> Any:
        config = vllm_config(parallel_config__data_parallel_rank_local=rank)
        if endpoints is not None:
            config.additional_config = {consolidated.KEY: endpoints}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DYN_")}
        with mock.patch.dict(os.environ, {**kept, **variables}, clear=True):
            found = consolidated.stream_of(config)
        return found.get("consolidated_endpoint", ""), found.get("consolidator_mode", "")

    def test_the_place_is_what_dynamo_s_worker_was_told_else_kvbm_s_port(self) -> None:
        told = ("tcp://127.0.0.1:20080", "tcp://0.0.0.0:57001", "tcp://127.0.0.1:57001")
        port = {consolidation.LEADER_PORT: "50000"}
        self.assertEqual(self.stream(told), ("tcp://0.0.0.0:57001", ""))
        self.assertEqual(self.stream(list(told), **port), ("tcp://0.0.0.0:57001", ""))
        self.assertEqual(self.stream(None, **port), ("tcp://0.0.0.0:51000", ""))
        self.assertEqual(self.stream(), ("", ""), "the agent has a rule of its own")
        self.assertEqual(self.stream("tcp://0.0.0.0:57001"), ("", ""))

    def test_ranks_of_one_worker_have_ports_of_their_own(self) -> None:
        told = ("", "tcp://0.0.0.0:57001", "")
        self.assertEqual(self.stream(told, 2)[0], "tcp://0.0.0.0:57003")
        self.assertEqual(self.stream(told, None)[0], "tcp://0.0.0.0:57001")

    def test_the_mode_and_the_switch_are_kvbm_s(self) -> None:
        told = ("", "tcp://0.0.0.0:57001", "")
        for value, mode in (("Dedup", "dedup"), ("passthrough", "passthrough"), ("", "")):
            self.assertEqual(self.stream(told, **{consolidation.MODE: value})[1], mode)
        self.assertEqual(self.stream(told, **{consolidation.ENABLE: "0"}), ("", ""))

    def test_what_cannot_be_used_is_said_and_left_to_the_agent(self) -> None:
        cases: list[tuple[Any, dict[str, str], str]] = [
            (("", "ipc:///x", ""), {}, "ipc:///x"),
            (("", "tcp://0.0.0.0:65536", ""), {}, "65536"),
            (None, {consolidation.LEADER_PORT: "65000"}, consolidation.LEADER_PORT),
            (("", "tcp://*:1", ""), {consolidation.MODE: "merge"}, "merge"),
        ]
        for told, variables, word in cases:
            with self.assertLogs("blockyard.consolidation", "WARNING") as logs:
                self.assertEqual(self.stream(told, **variables), ("", ""))
            self.assertIn(word, logs.output[0])


class Overlap(unittest.TestCase):
    def test_steps_overlap_with_asynchronous_scheduling_and_pipelines(self) -> None:
        self.assertFalse(facts.steps_overlap(vllm_config(max_concurrent_batches=1)))
        self.assertTrue(facts.steps_overlap(vllm_config(max_concurrent_batches=2)))
        self.assertTrue(facts.steps_overlap(vllm_config()), "it does not say")


class Off(unittest.TestCase):
    def test_reasons(self) -> None:
        self.assertEqual(facts.why_off(vllm_config(), SETTINGS), "")
        self.assertIn("disabled", facts.why_off(vllm_config(), Settings(enabled=False)))
        for changes, word in (
            ({"model_config__is_encoder_decoder": True}, "encoder-decoder"),
            ({"parallel_config__prefill_context_parallel_size": 2}, "context"),
        ):
            self.assertIn(word, facts.why_off(vllm_config(**changes), SETTINGS))

    def test_without_prefix_caching_it_works_unless_the_model_is_why(self) -> None:
        config = vllm_config(cache_config__enable_prefix_caching=False)
        self.assertEqual(facts.why_off(config, SETTINGS), "")
        config.model_config.runner_type = "pooling"
        self.assertIn("pooling", facts.why_off(config, SETTINGS))


class Keys(unittest.TestCase):
    """Every value that changes KV or its layout changes the namespace."""

    def namespace(self, **changes: Any) -> dict[str, Any]:
        config = vllm_config(**changes)
        text = facts.weights_of(config, SETTINGS).text
        kv = kv_config((full(32), ["a"]))
        made = Format("LBNHC", "FLASH_ATTN", "float32", "d")
        return facts.namespace_of(config, kv, text, 32 * 64, 32, [made]).as_map()

    def model(self, kind: str, generation: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return self.namespace(
            model_config__hf_config=Bag(to_dict=lambda: {"model_type": kind}),
            model_config__try_get_generation_config=lambda: dict(generation),
            **changes,
        )

    def test_the_greatest_length_counts_as_it_selects_rotary_factors(self) -> None:
        """Above its original length, Phi-3 LongRoPE computes other keys for the same position."""
        self.assertNotEqual(
            self.namespace(model_config__max_model_len=4096),
            self.namespace(model_config__max_model_len=8192),
        )

    def test_llama_4_takes_its_attention_tuning_from_where_sampling_defaults_are(self) -> None:
        tuned = {"attn_temperature_tuning": True, "temperature": 0.6}
        self.assertNotEqual(self.model("llama4", {}), self.model("llama4", tuned))
        self.assertNotEqual(
            self.model("llama4", tuned),
            self.model(
                "llama4",
                tuned,
                model_config__override_generation_config={"attn_temperature_tuning": False},
            ),
        )
        self.assertEqual(self.model("llama", {}), self.model("llama", tuned))
        self.assertEqual(self.model("llama4", {}), self.model("llama4", {"temperature": 0.6}))

    def test_how_a_context_group_takes_turns_counts(self) -> None:
        """The interleave size decides which rank has a token's KV."""

        def made(dcp: int, interleave: int) -> dict[str, Any]:
            return self.namespace(
                parallel_config__decode_context_parallel_size=dcp,
                parallel_config__tensor_parallel_size=2,
                parallel_config__cp_kv_cache_interleave_size=interleave,
            )

        self.assertNotEqual(made(2, 1), made(2, 32))
        self.assertEqual(made(1, 1), made(1, 32))

    def test_what_adapters_are_applied_to_counts_where_there_are_adapters(self) -> None:
        every = self.namespace(lora_config=Bag(target_modules=None))
        self.assertNotEqual(every, self.namespace(lora_config=Bag(target_modules=["o_proj"])))
        self.assertNotEqual(every, self.namespace(lora_config=Bag(lora_dtype="float16")))
        self.assertEqual(every, self.namespace(lora_config=Bag(max_loras=4)))
        self.assertEqual(self.namespace(lora_config=None), self.namespace())

    def test_a_layout_that_only_a_variable_tells_of_counts(self) -> None:
        plain = facts.format_of(vllm_config(), kv_config((full(), ["a"])), "d")
        with mock.patch.dict(os.environ, {"VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"}):
            shuffled = facts.format_of(vllm_config(), kv_config((full(), ["a"])), "d")
        self.assertNotEqual(plain, shuffled)

    def test_every_key_says_why(self) -> None:
        for table in (facts.MODEL_KEYS, facts.CACHE_KEYS, facts.LORA_KEYS):
            for name, why in table.items():
                self.assertTrue(why, name)


class Weights(unittest.TestCase):
    def text(self, settings: Settings = SETTINGS, **changes: Any) -> str:
        return facts.weights_of(vllm_config(**changes), settings).text

    def test_what_computes_the_same_has_the_same_fingerprint(self) -> None:
        moved = Bag(to_dict=lambda: {"hidden_size": 8, "_name_or_path": "/elsewhere"})
        self.assertEqual(self.text(), self.text(model_config__hf_config=moved))

    def test_configuration_quantization_and_salt_tell_apart(self) -> None:
        other = Bag(to_dict=lambda: {"hidden_size": 9})
        draft = Bag(draft_model_config=Bag(model="/draft", hf_config=other, seed=0))
        texts = [
            self.text(),
            self.text(model_config__hf_config=other),
            self.text(model_config__quantization="fp8"),
            self.text(cache_config__cache_dtype="fp8"),
            self.text(Settings(namespace_salt="team-a")),
            self.text(Settings(weights="release-1")),
            self.text(speculative_config=draft),
        ]
        self.assertEqual(len(set(texts)), len(texts))

    def test_scales_measured_at_run_time_are_shared_with_nobody(self) -> None:
        config = vllm_config(cache_config__calculate_kv_scales=True)
        first = facts.weights_of(config, SETTINGS)
        self.assertFalse(first.shared)
        self.assertNotEqual(first.text, facts.weights_of(config, SETTINGS).text)


class Namespaces(unittest.TestCase):
    def test_real_geometry_and_a_format_that_names_what_lies_there(self) -> None:
        spec = full(32)
        spec.dtype = Bag(itemsize=4)
        config = kv_config((spec, ["a", "b"]))
        fmt = Format("LBNHC", "CPU_ATTN.vec", "float32", "d1g3st")
        total = 2 * 2 * 32 * 64 * 4
        namespace = facts.namespace_of(vllm_config(), config, "w", total, 32, [fmt])
        self.assertEqual(namespace.block_bytes, total)
        self.assertEqual((namespace.num_layers, namespace.outer_dim), (2, 2))
        self.assertEqual((namespace.model, namespace.dtype), ("tiny", "float32"))
        for part in ("vllm-", "CPU_ATTN.vec", "LBNHC", "auto"):
            self.assertIn(part, namespace.kv_format)
        moved = replace(fmt, digest="other")
        other = facts.namespace_of(vllm_config(), config, "w", total, 32, [moved])
        self.assertNotEqual(namespace.kv_format, other.kv_format)

    def test_format_names_backend_instruction_set_and_layout(self) -> None:
        layer = Bag(attn_backend=Bag(get_name=lambda: "CPU_ATTN"), isa="amx")
        config = vllm_config(compilation_config__static_forward_context={"a": layer})
        kv = kv_config((full(), ["a"]))
        digest = digest_of({"a": FakeTensor((16, 32, 4))}, kv)
        self.assertEqual(
            facts.format_of(config, kv, digest),
            Format("LBNHC", "CPU_ATTN.amx", "float32", digest),
        )


if __name__ == "__main__":
    unittest.main()
