package config

import "testing"

func TestC7PortsThatCollideOrOverflowAreRefused(t *testing.T) {
	const output = "DYN_KVBM_LEADER_ZMQ_PUB_PORT + 1000, the consolidator's port,"
	for _, c := range []struct {
		environ []string
		want    string
	}{
		{[]string{"DYN_KVBM_LEADER_ZMQ_ACK_PORT=56001"}, "DYN_KVBM_LEADER_ZMQ_ACK_PORT 56001: must differ from DYN_KVBM_LEADER_ZMQ_PUB_PORT"},
		{[]string{"DYN_KVBM_LEADER_ZMQ_ACK_PORT=57001"}, output + " 57001: must differ from DYN_KVBM_LEADER_ZMQ_ACK_PORT"},
		{[]string{"DYN_KVBM_LEADER_ZMQ_PUB_PORT=64536"}, output + " is 65536: want at most 65535"},
		{[]string{"DYN_KVBM_TRTLLM_ZMQ_PORT=56001"}, "DYN_KVBM_TRTLLM_ZMQ_PORT 56001: must differ from DYN_KVBM_LEADER_ZMQ_PUB_PORT"},
		{[]string{"DYN_KVBM_METRICS=1", "DYN_KVBM_METRICS_PORT=56002"}, "DYN_KVBM_METRICS_PORT 56002: must differ from DYN_KVBM_LEADER_ZMQ_ACK_PORT"},
	} {
		if _, _, err := FromEnviron(c.environ); err == nil || err.Error() != c.want {
			t.Errorf("%q: got %v\nwant %s", c.environ, err, c.want)
		}
	}
}

func TestPortsThatNobodyBindsMayBeEqual(t *testing.T) {
	mustRead(t, "DYN_KVBM_METRICS_PORT=56002")
	mustRead(t, "DYN_KVBM_LEADER_ZMQ_ACK_PORT=57001", "DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR=0")
	mustRead(t, "DYN_KVBM_LEADER_ZMQ_PUB_PORT=65535", "DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR=0")
}

func TestConsolidatorPublishesAThousandAboveTheLeader(t *testing.T) {
	e, _ := mustRead(t, "DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE=passthrough")
	for _, in := range []string{"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://127.0.0.1:5557"} {
		got, on, err := e.Consolidator(SourceVLLM, in)
		want := Consolidator{"tcp://127.0.0.1:5557", "tcp://0.0.0.0:57001", SourceVLLM, Passthrough}
		if got != want || !on || err != nil {
			t.Errorf("%s: got %+v, %v, %v", in, got, on, err)
		}
	}
}

func TestTRTLLMConsolidatorNeedsAPort(t *testing.T) {
	e, _ := mustRead(t)
	const want = "DYN_KVBM_TRTLLM_ZMQ_PORT is not set: want the port on which TensorRT-LLM's events are published"
	if _, _, err := e.Consolidator(SourceTRTLLM, ""); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	e, _ = mustRead(t, "DYN_KVBM_TRTLLM_ZMQ_PORT=5600")
	if got, on, err := e.Consolidator(SourceTRTLLM, ""); got.EngineEventEndpoint != "tcp://127.0.0.1:5600" || !on || err != nil {
		t.Errorf("got %+v, %v, %v", got, on, err)
	}
}

func TestConsolidatorIsOffWhenTheEnvironmentSaysSo(t *testing.T) {
	e, _ := mustRead(t, "DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR=false")
	if got, on, err := e.Consolidator(SourceTRTLLM, ""); got != (Consolidator{}) || on || err != nil {
		t.Errorf("got %+v, %v, %v", got, on, err)
	}
}
