package blockmgr

import (
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// hybridPage is the tokens of a chain block of hybridNamespace.
const hybridPage = 16

// hybridNamespace has full attention, windows of three blocks, and states of every second block.
func hybridNamespace(model string) kv.Namespace {
	ns := testNamespace(model)
	ns.Groups = []kv.Group{
		{Kind: "full", BlockSize: hybridPage, BlockBytes: 2304, Layers: 1},
		{Kind: "sliding", Window: 48, BlockSize: hybridPage, BlockBytes: 2048, Layers: 5},
		{Kind: "state", BlockSize: 2 * hybridPage, BlockBytes: 1000, Layers: 3},
	}
	return ns
}

// groupRun returns blocks first … end-1 of a KV group of hybridNamespace, as far as chain has them.
func groupRun(chain []Block, group uint32, first, end int) (blocks []Block) {
	ns := hybridNamespace("test")
	gs := ns.KVGroups()
	for i := first; i < min(end, len(chain)*hybridPage/int(gs[group].BlockSize)); i++ {
		blocks = append(blocks, tier.GroupBlock(gs, hybridPage, chain, group, uint32(i)))
	}
	return blocks
}

// hybridTwin is a twin whose runs are of any KV group.
type hybridTwin struct{ *twin }

func drawGroupRun(t *rapid.T) []Block {
	blocks := chain(rapid.Uint64Range(1, modelChains).Draw(t, "chain"), modelChainLen)
	group := rapid.Uint32Range(0, 2).Draw(t, "group")
	first := 0
	if rapid.IntRange(0, 2).Draw(t, "middle") == 0 {
		first = rapid.IntRange(0, modelChainLen-1).Draw(t, "first")
	}
	return groupRun(blocks, group, first, rapid.IntRange(first, modelChainLen).Draw(t, "end"))
}

// Fit compares Pool.Fit with a look at every length, by what a dump shows.
func (m hybridTwin) Fit(t *rapid.T) {
	m.quiesce()
	blocks := chain(rapid.Uint64Range(1, modelChains).Draw(t, "chain"), modelChainLen)
	limit := rapid.Uint32Range(0, (modelChainLen+1)*hybridPage).Draw(t, "limit")
	ns := m.Namespace()
	gs := ns.KVGroups()
	before := m.residents()
	want := uint32(0)
	for tokens := gs.Align(); tokens <= min(limit, modelChainLen*hybridPage); tokens += gs.Align() {
		all := true
		for g := range gs {
			first, end := gs[g].Needs(tokens)
			for _, b := range groupRun(blocks, uint32(g), int(first), int(end)) {
				all = all && before[b.Key] != 0
			}
		}
		if all {
			want = tokens
		}
	}
	if got := m.Pool.Fit(blocks, limit, 0); got != want {
		t.Fatalf("limit %d: %d tokens fit, want %d", limit, got, want)
	}
	if !maps.Equal(before, m.residents()) {
		t.Fatal("Fit has changed what is resident")
	}
}

// residents returns the tiers of each resident block.
func (m hybridTwin) residents() map[kv.StoredKey]kv.TierMask {
	at := map[kv.StoredKey]kv.TierMask{}
	for _, info := range m.Dump() {
		at[info.Block.Key] = info.Tiers
	}
	return at
}

func TestPoolWithGroupsServesOnlyWhatWasCommitted(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"host only":     func(c *Config) { c.DiskBytes = 0 },
		"host and disk": func(*Config) {},
		"disk only":     func(c *Config) { c.HostBytes = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				dir, err := os.MkdirTemp("", "blockmgr-model-")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				cfg := Config{HostDir: dir + "/host", HostBytes: hostBytes(11), DiskDir: dir + "/disk", DiskBytes: 20 * testSlotBytes, ExtentBytes: hostBytes(20), MaxPinsPerSession: 12}
				change(&cfg)
				m := hybridTwin{&twin{
					testPool: openTestManager(t, cfg).openNamespace(hybridNamespace("test")), version: map[kv.StoredKey]uint64{},
					granted: map[SessionID][]filled{}, pinned: map[SessionID][]pinned{}, drawRun: drawGroupRun,
				}}
				defer m.finish()
				m.sessions = []SessionID{m.sid, m.begin()}
				t.Repeat(map[string]func(*rapid.T){
					"Grant": m.Grant, "Commit": m.Commit, "Abort": m.Abort, "Lookup": m.Lookup, "Fit": m.Fit,
					"Unpin": m.Unpin, "EndSession": m.EndSession, "Settle": m.Settle, "": m.check,
				})
				m.quiesce()
			})
		})
	}
}

// talk is a conversation whose prompt grows from turn to turn.
type talk struct {
	chain  []Block
	blocks int // of the prompt so far
}

// converse has talks of eight turns take turns at random, the same with every seed, and returns the
// share of the tokens that could have been found. unused are the full blocks that no prefix uses,
// orphans the windows without their prefix.
func converse(p *testPool, groups bool) (hits float64, unused, orphans int) {
	const talks, turns, grow = 24, 8, 4
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]talk, talks)
	for i := range all {
		all[i] = talk{chain: chain(uint64(i+1), turns*grow)}
	}
	found, could, next := 0, 0, uint64(talks)
	for range 1200 {
		// A few talks have most of the turns.
		t := &all[min(random.IntN(talks), random.IntN(talks))]
		if t.blocks == len(t.chain) {
			next++
			*t = talk{chain: chain(next, turns*grow)}
		}
		old, end := t.blocks, t.blocks+grow
		t.blocks = end
		fits := p.turn(t.chain[:end], groups)
		if old > 0 {
			could += old
			found += min(fits, old)
		}
	}
	for i := range all {
		t := &all[i]
		have := 0
		for _, in := range p.tiersOf(t.chain[:t.blocks]) {
			if in != '-' {
				have++
			}
		}
		unused += have - int(p.Fit(t.chain[:t.blocks], uint32(t.blocks)*hybridPage, 0))/hybridPage
		for b, in := range p.tiersOf(groupRun(t.chain, 1, 0, t.blocks)) {
			if in != '-' && b >= have {
				orphans++
			}
		}
	}
	return float64(found) / float64(could), unused, orphans
}

// turn has an engine load what fits of a prompt, and store the rest with the window at its end. It
// returns the blocks that fit.
func (p *testPool) turn(prompt []Block, groups bool) int {
	n := int(p.Fit(prompt, uint32(len(prompt))*hybridPage-1, 0)) / hybridPage
	p.find(prompt[:n])
	if groups {
		p.find(groupRun(prompt, 1, max(0, n-3), n))
	}
	p.store(prompt)
	if groups {
		p.store(groupRun(prompt, 1, len(prompt)-3, len(prompt)))
	}
	p.quiesce()
	return n
}

// In a full tier a window leaves before the prefix that it needs, and a prefix whose window has left
// is not used any more and leaves next: neither displaces the other. So a pool finds as much as one
// without groups that has room for the same conversations.
func TestWindowsAndPrefixesDoNotDisplaceEachOther(t *testing.T) {
	const slots = 220
	windows := hybridNamespace("windows")
	windows.Groups = windows.Groups[:2]
	grouped := openTestManager(t, Config{HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(slots)}).openNamespace(windows)
	defer grouped.finish()
	hits, unused, orphans := converse(grouped, true)

	// A conversation of 32 blocks has 3 more for its last window, and 3 for the turn before.
	plain := newTestPool(t, Config{HostBytes: hostBytes(slots * 32 / 38)})
	reference, _, _ := converse(plain, false)
	t.Logf("hits %.3f, without groups %.3f; %d full blocks of %d slots are of no use", hits, reference, unused, slots)
	if hits < 0.9*reference || reference < 0.3 || reference > 0.95 {
		t.Errorf("found %.3f of the tokens, %.3f without groups", hits, reference)
	}
	if unused > slots/10 || orphans > 0 {
		t.Errorf("%d full blocks and %d windows are resident and of no use, in %d slots", unused, orphans, slots)
	}
}

// The blocks of a group come back after the agent's death and from disk under their own names.
func TestGroupsOutliveTheAgent(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"host": func(c *Config) { c.DiskBytes = 0 },
		"disk": func(c *Config) { c.DiscardHost = true },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(32), DiskBytes: 64 * testSlotBytes, ExtentBytes: hostBytes(32)}
			change(&cfg)
			prompt := chain(7, 6)
			p := openTestManager(t, cfg).openNamespace(hybridNamespace("test"))
			for g := range uint32(3) {
				p.store(groupRun(prompt, g, 0, 6))
			}
			p.quiesce()
			p.finish()

			p = openTestManager(t, cfg).openNamespace(hybridNamespace("test"))
			defer p.finish()
			p.quiesce()
			if got := p.Fit(prompt, 100, 0); got != 96 {
				t.Errorf("%d tokens fit", got)
			}
			for g, want := range []int{6, 6, 3} {
				if got := p.find(groupRun(prompt, uint32(g), 0, 6)); len(got) != want {
					t.Errorf("group %d: %d blocks found, want %d", g, len(got), want)
				}
			}
		})
	}
}
