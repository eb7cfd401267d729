package config

import "testing"

func TestConstructorsFillInTheSource(t *testing.T) {
	const in, out = "tcp://10.0.0.1:5557", "ipc:///run/kv-events"
	if c, err := NewVLLM(in, out); err != nil || c != (Consolidator{in, out, SourceVLLM, Dedup}) {
		t.Errorf("got %+v, %v", c, err)
	}
	if c, err := NewTRTLLM(in, out); err != nil || c != (Consolidator{in, out, SourceTRTLLM, Dedup}) {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestConsolidatorWithoutItsPartsIsRefused(t *testing.T) {
	const in, out = "tcp://127.0.0.1:5557", "tcp://*:5558"
	for _, c := range []struct {
		engine  EventSource
		in, out string
		want    string
	}{
		{SourceVLLM, in, "", `consolidator consolidated_event_endpoint "": must be set, to tcp://HOST:PORT or ipc://PATH`},
		{SourceTRTLLM, in, "", `consolidator consolidated_event_endpoint "": must be set, to tcp://HOST:PORT or ipc://PATH`},
		{SourceVLLM, "", out, `consolidator engine_event_endpoint "": must be set, to tcp://HOST:PORT or ipc://PATH`},
		{SourceKVBM, in, out, `consolidator engine_source kvbm: want vllm or trtllm; the block manager is no engine, it hands its events over directly`},
		{0, in, out, `consolidator engine_source 0: want 1 (vllm) or 2 (trtllm)`},
		{SourceVLLM, "tcp://*:5557", out, `consolidator engine_event_endpoint "tcp://*:5557": want a host to connect to, not *`},
		{SourceVLLM, in, in, `consolidator consolidated_event_endpoint "tcp://127.0.0.1:5557": must not be the engine_event_endpoint`},
	} {
		got, err := newConsolidator(c.engine, c.in, c.out)
		if err == nil || err.Error() != c.want || got != (Consolidator{}) {
			t.Errorf("got %+v, %v\nwant %s", got, err, c.want)
		}
	}
}

func TestEndpointsOfOtherFormsAreRefused(t *testing.T) {
	for _, bad := range []string{"5558", "tcp://", "tcp://host", "tcp://:5558", "tcp://host:0", "tcp://host:65536", "tcp://*:*", "ipc://", "inproc://x", "udp://host:1", "*:5558"} {
		if _, err := NewVLLM("tcp://127.0.0.1:1", bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if _, err := NewVLLM("tcp://[::1]:1", "tcp://0.0.0.0:65535"); err != nil {
		t.Error(err)
	}
}

func TestEventSourcesAreReadInEverySpelling(t *testing.T) {
	for source, spellings := range map[EventSource][]string{
		SourceVLLM:   {"vllm", "VLLM", "GPU"},
		SourceTRTLLM: {"trtllm", "TRTLLM", "TensorRT-LLM"},
		SourceKVBM:   {"kvbm", "KVBM"},
	} {
		for _, s := range append(spellings, source.String()) {
			if got, err := ParseEventSource(s); got != source || err != nil {
				t.Errorf("%s: got %s, %v", s, got, err)
			}
		}
	}
	for _, bad := range []string{"", "Vllm", "sglang", "gpu"} {
		if got, err := ParseEventSource(bad); err == nil || got != 0 {
			t.Errorf("%q: got %s, %v", bad, got, err)
		}
	}
}
