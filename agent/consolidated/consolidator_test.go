package consolidated_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// consolidation describes a consolidator of an engine that does not run.
func consolidation(mode config.ConsolidatorMode) kvbm.Consolidation {
	return kvbm.Consolidation{
		Consolidator: config.Consolidator{
			EngineEventEndpoint: "tcp://127.0.0.1:1", EngineSource: config.SourceVLLM, Mode: mode,
		},
		WorkerID: 7, BlockTokens: 16,
	}
}

// An engine that is not there is no error, in any mode. The pool's events are taken all the
// same, and the start says the mode.
func TestStartNeedsNoEngine(t *testing.T) {
	for _, mode := range []config.ConsolidatorMode{config.Dedup, config.Passthrough, config.Tiered} {
		c := consolidation(mode)
		c.ConsolidatedEventEndpoint = "ipc://" + t.TempDir() + "/events"
		core, logs := observer.New(zap.InfoLevel)
		c.Log = zap.New(core)
		m, err := consolidated.Start(c)
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		m.BlockStored(kv.NamespaceID{}, kv.TierHost, blockmgr.Block{Seq: 1})
		m.BlockRemoved(kv.NamespaceID{}, kv.TierHost, blockmgr.Block{Seq: 1})
		if err := m.Close(); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if said := logs.FilterMessage("consolidated events").All(); len(said) != 1 || said[0].ContextMap()["mode"] != mode.String() {
			t.Errorf("%s: said %v", mode, said)
		}
	}
}

func TestStartRefusesWhatCannotBeBound(t *testing.T) {
	for _, change := range []func(*kvbm.Consolidation){
		func(c *kvbm.Consolidation) { c.ConsolidatedEventEndpoint = "ipc:///proc/none/events" },
		func(c *kvbm.Consolidation) { c.ConsolidatedEventEndpoint = "" },
		func(c *kvbm.Consolidation) { c.WorkerID = 0 },
	} {
		c := consolidation(config.Dedup)
		c.ConsolidatedEventEndpoint = "ipc://" + t.TempDir() + "/events"
		change(&c)
		if _, err := consolidated.Start(c); err == nil || strings.Contains(err.Error(), "panic") {
			t.Errorf("%+v: %v", c.Consolidator, err)
		}
	}
}
