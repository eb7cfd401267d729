package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestEventScript tells stories of requests and the batches that they cause.
// The core is stepped by hand: no goroutine, no agent. Engine hashes, which are
// random, are shown as A, B, C… in order of appearance.
//
//	engine blocks=N budget=N     a fresh engine with blocks of 4 tokens
//	generate from=T n=N out=N    queue a request for tokens T … T+N-1
//	run                          step until there is nothing to do
//	reset                        reset the prefix cache
func TestEventScript(t *testing.T) {
	var e *testEngine
	var names map[kv.EngineHash]string
	var pending []*request
	datadriven.RunTest(t, "testdata/events.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "engine":
			o := testOptions(0)
			d.ScanArgs(t, "blocks", &o.DeviceBlocks)
			d.ScanArgs(t, "budget", &o.MaxBatchedTokens)
			o.SpeedUp = 1e9
			e, names, pending = newTestEngine(o, nil), map[kv.EngineHash]string{}, nil
			return ""
		case "generate":
			var from, n, out int
			d.ScanArgs(t, "from", &from)
			d.ScanArgs(t, "n", &n)
			d.ScanArgs(t, "out", &out)
			r, err := e.api.newRequest(&GenerateRequest{Tokens: tokenRun(from, n), OutputTokens: out})
			if err == nil {
				err = e.submit(r)
			}
			if err != nil {
				return err.Error()
			}
			pending = append(pending, r)
			return ""
		case "run":
			e.batches = nil
			for e.step() {
			}
			var b strings.Builder
			for i, batch := range e.batches {
				writeBatch(&b, i, batch, names)
			}
			for _, r := range pending {
				served, _, err := result(r)
				fmt.Fprintf(&b, "served device=%d recomputed=%d err=%v\n", served.Device, served.Recomputed, err)
			}
			pending = nil
			fmt.Fprintf(&b, "resident %d", len(e.pool.resident(e.pool.full())))
			return b.String()
		case "reset":
			return fmt.Sprint(e.reset())
		}
		return "unknown command"
	})
}

func writeBatch(b *strings.Builder, i int, batch engineevent.Batch, names map[kv.EngineHash]string) {
	name := func(h kv.EngineHash) string {
		if names[h] == "" {
			names[h] = string(rune('A' + len(names)))
		}
		return names[h]
	}
	for _, ev := range batch.Events {
		fmt.Fprintf(b, "batch %d: %s", i, ev.Kind)
		for _, h := range ev.BlockHashes {
			fmt.Fprintf(b, " %s", name(h))
		}
		if ev.HasParent {
			fmt.Fprintf(b, " after %s", name(ev.Parent))
		}
		if ev.Kind == kvevent.Stored {
			fmt.Fprintf(b, " tokens %d…%d", ev.Tokens[0], ev.Tokens[len(ev.Tokens)-1])
			fmt.Fprintf(b, " %s group %d %s size %d", ev.Medium, ev.Group, ev.SpecKind, ev.BlockSize)
		}
		b.WriteByte('\n')
	}
}
