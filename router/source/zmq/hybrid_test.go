package zmq

import (
	"fmt"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestAPlainHybridEngineIsCreditedByItsGroups: the router learns the KV groups of an engine without
// an agent from the engine's events, and credits what all of them can serve.
func TestAPlainHybridEngineIsCreditedByItsGroups(t *testing.T) {
	e := startEngine(t, 1, zmqpub.Options{})
	s := newSource(t, Options{})
	follow(t, s, e.target())
	r := routertest.RunRouter(t, router.Options{}, s)
	tokens := sourcetest.Tokens(1, 2, 3, 4, 5, 6)
	hits := func(want uint32) func() bool {
		return func() bool {
			m, err := r.Model("m")
			if err != nil {
				return false // not announced yet
			}
			overlaps, err := m.Decide().Overlaps(&router.Request{Tokens: append(tokens, 0)})
			return err == nil && len(overlaps) == 1 && overlaps[0].Hits[kv.TierDevice] == want
		}
	}
	full := engineevent.Event{
		Kind: kvevent.Stored, Medium: "GPU", Group: 1, SpecKind: "full_attention", BlockSize: blockSize,
		BlockHashes: []kv.EngineHash{11, 12, 13, 14, 15, 16}, Tokens: tokens,
	}
	window := engineevent.Event{
		Kind: kvevent.Stored, Medium: "GPU", Group: 0, SpecKind: "sliding_window", SlidingWindow: 2 * blockSize, BlockSize: blockSize,
		BlockHashes: []kv.EngineHash{13, 14}, Parent: 12, HasParent: true, Tokens: tokens[2*blockSize : 4*blockSize],
	}
	e.publish(window, full)
	sourcetest.Eventually(t, fmt.Sprintf("the window serves four blocks of %d", len(full.BlockHashes)), hits(4))
	e.publish(engineevent.Event{Kind: kvevent.Removed, Medium: "GPU", Group: 0, BlockHashes: []kv.EngineHash{13}})
	sourcetest.Eventually(t, "half a window serves nothing", hits(0))
	window.BlockHashes, window.Parent, window.Tokens = []kv.EngineHash{15, 16}, 14, tokens[4*blockSize:]
	e.publish(window)
	sourcetest.Eventually(t, "another window serves all", hits(6))
}
