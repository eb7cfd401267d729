package blockmgr

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/datadriven"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestScripts runs the stories in testdata/scripts. Each story opens a node in fresh
// directories with one pool and one session, and ends with the checks of testPool.finish.
// The first line of a story is its configuration; sizes are slots:
//
//	story host=8 disk=64 extent=8 hostblocks=N diskblocks=N pins=N scrub=BYTES discard refuse groups
//
// Blocks are named by their chains: a:4 is the first four blocks of chain a, a[1:3] are the
// second and the third, b is b:1, and + joins. The blocks left and right both follow root. With
// groups the pools are those of hybridNamespace, and a/1:4 are blocks of KV group 1.
// A command prints what the next line says of it; a quiet one prints nothing. After each
// command the pool comes to rest.
//
//	store B [priority=N]          grant, fill and commit
//	grant B [by=S] [as=NAME]      grant and remember the slots
//	commit|abort|unpin NAME [by=S]
//	find B                        the tiers in which a lookup finds B; the bytes are compared
//	hurry B                       the same for a lookup that cannot wait
//	pin B [by=S] [as=NAME]        look up and remember the pins
//	show B                        where each block is: Host, Disk, Both or -
//	fit B [limit=TOKENS] [align=TOKENS]   the tokens of chain blocks B that all groups have
//	allocate N [by=S] [as=NAME]   take slots by handles
//	register B [priority=N] [as=NAME]   register by handles; without a name, release them
//	match B                       how many blocks handles find
//	release NAME                  release the handles of that name
//	touch|prefetch B, keep B TIME, age   advance the clock of ages by as much as records tell
//	prompts N [blocks=N] [priority=N] as=NAME   store N new chains, of 8 blocks each if not told
//	left NAME [N]                 how many of their blocks, or of those of the last N, are in host memory
//	reset host|disk|all, reset-blocks host|disk B, reset-exclusive [by=S]
//	evict B, drop B               evict from host memory by storing others, or by a reset
//	flip|truncate host|disk B     invert the last byte of a block, or cut its extent there
//	note host|disk B NAME         remember the slot of a block
//	stale NAME                    remember the slot NAME at an older generation
//	tear host|disk NAME           garble the record of a slot, while no agent runs
//	rewrite host|disk NAME STATE  have it say filled, ..., no block (unnamed), foreign, longer, twice
//	fault read|write|table|grow=FAULT [times=N]   fault none ends it
//	trip, leave, retry            open the disk's breaker, do not try the disk, try it now
//	begin S, end S [dying], exit S   sessions; a pool's own has its name, which is test
//	renew, revive S               begin another one of the pool's own, or one of an old id
//	namespace NAME, retire        go on with the pool of that model; close it for good
//	close, kill, open [node] [CONFIG]   end the agent in order or not; start the next one,
//	                              without a pool if told so; earlier is its session
//	forget S, resume S [by=S] [granted=NAME] [pinned=NAME]
//	spares [NAME…]                how many slots new blocks get; none of NAME may be among them
//	sleep TIME
//	stats FIELD…, offers, told    fields of Stats, or FIELD>0; what the filter and the sink were told
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) (out string) {
			if d.Cmd != "story" {
				d.Fatalf(t, "want a story")
			}
			synctest.Test(t, func(t *testing.T) { out = newStory(t, d).run(d.Input) })
			return out
		})
	})
}

// story is the state of one story.
type story struct {
	*testPool
	t        *testing.T
	cfg      Config
	pools    map[string]*testPool
	sessions map[string]SessionID
	exits    map[string]chan struct{}
	slots    map[string][]Slot
	content  map[Slot]Block  // of granted slots
	latest   map[Slot]uint64 // the last generation of each slot, which is 0 in the key
	prompts  map[string][][]Block
	handles  map[string][]interface{ Release() }
	faults   map[string]*atomic.Uint32
	times    atomic.Int64 // how many operations get a fault
	filter   *refusingFilter
	// namespace returns the namespace of a model.
	namespace func(model string) kv.Namespace
}

func newStory(t *testing.T, d *datadriven.TestData) *story {
	s := &story{
		t: t, cfg: Config{HostDir: t.TempDir(), DiskDir: t.TempDir()},
		sessions: map[string]SessionID{}, exits: map[string]chan struct{}{},
		slots: map[string][]Slot{}, content: map[Slot]Block{}, latest: map[Slot]uint64{}, handles: map[string][]interface{ Release() }{}, prompts: map[string][][]Block{},
		faults: map[string]*atomic.Uint32{"read": {}, "write": {}, "table": {}, "grow": {}}, filter: &refusingFilter{}, namespace: testNamespace,
	}
	plan := func(read, write string) func(storagetest.Op, int) storagetest.Fault {
		return func(op storagetest.Op, _ int) storagetest.Fault {
			where, injected := map[storagetest.Op]string{
				storagetest.OpRead: read, storagetest.OpWrite: write, storagetest.OpAllocate: "grow",
			}[op]
			if !injected || s.faults[where].Load() == 0 || s.times.Add(-1) < 0 {
				return storagetest.FaultNone
			}
			return storagetest.Fault(s.faults[where].Load())
		}
	}
	s.cfg.WrapDisk = func(path string, f extent.File) extent.File {
		return faults(plan("table", "table"), isTable)(path, faults(plan("read", "write"), isExtent)(path, f))
	}
	for _, a := range d.CmdArgs {
		s.configure(a.Key, strings.Join(a.Vals, ""))
	}
	s.open()
	s.enter("test")
	return s
}

func (s *story) configure(key, value string) {
	n, _ := strconv.ParseUint(value, 10, 64)
	switch key {
	case "host":
		s.cfg.HostBytes = hostBytes(n)
	case "disk":
		s.cfg.DiskBytes = n * testSlotBytes
	case "extent":
		s.cfg.ExtentBytes = n * testSlotBytes
	case "hostblocks":
		s.cfg.HostBlocks = n
	case "diskblocks":
		s.cfg.DiskBlocks = n
	case "pins":
		s.cfg.MaxPinsPerSession = int(n)
	case "scrub":
		s.cfg.ScrubBytesPerSecond = int64(n)
	case "discard":
		s.cfg.DiscardHost = true
	case "refuse":
		s.cfg.Filter = s.filter
	case "groups":
		s.namespace = hybridNamespace
	default:
		s.t.Fatalf("no setting %q", key)
	}
}

// open starts an agent in the directories of the story.
func (s *story) open() {
	s.testPool = openTestManager(s.t, s.cfg)
	s.pools = map[string]*testPool{}
	s.sessions["earlier"] = s.sessions["test"]
}

// enter goes on with the pool of a model, which it opens if need be.
func (s *story) enter(model string) {
	if s.pools[model] == nil {
		s.pools[model] = s.openNamespace(s.namespace(model))
		s.sessions[model] = s.pools[model].sid
	}
	s.testPool = s.pools[model]
}

func (s *story) run(lines string) string {
	var out strings.Builder
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if result := s.do(words[0], newStoryArgs(words[1:])); result != "" {
			fmt.Fprintf(&out, "%s: %s\n", line, result)
		}
		if s.testPool != nil && s.Pool != nil {
			s.quiesce()
			s.check()
		}
	}
	s.end()
	return out.String()
}

// end checks all pools and closes the manager, unless the story has.
func (s *story) end() {
	if s.testPool == nil {
		return
	}
	for _, p := range s.pools {
		p.quiesce()
		p.check()
		p.checkEvents()
	}
	if err := s.m.Close(); err != nil {
		s.t.Error(err)
	}
	s.testPool = nil
}

// storyArgs are the words and the key=value options of a command.
type storyArgs struct {
	words   []string
	options map[string]string
}

func newStoryArgs(words []string) storyArgs {
	a := storyArgs{options: map[string]string{}}
	for _, w := range words {
		if key, value, ok := strings.Cut(w, "="); ok {
			a.options[key] = value
		} else {
			a.words = append(a.words, w)
		}
	}
	return a
}

func (a storyArgs) word(i int) string {
	if i < len(a.words) {
		return a.words[i]
	}
	return ""
}

func (a storyArgs) number(key string) uint32 {
	n, _ := strconv.ParseUint(a.options[key], 10, 32)
	return uint32(n)
}

// session is the session of the option by, or the pool's own.
func (s *story) session(a storyArgs) SessionID {
	if name := a.options["by"]; name != "" {
		return s.sessions[name]
	}
	return s.sid
}

func (s *story) blocks(names string) (blocks []Block) {
	for name := range strings.SplitSeq(names, "+") {
		root, left, right := fork()
		switch name {
		case "root", "left", "right":
			blocks = append(blocks, map[string]Block{"root": root, "left": left, "right": right}[name])
			continue
		}
		first, end, group, rest := 0, 1, -1, name[1:]
		var err error
		if strings.HasPrefix(rest, "/") {
			group, rest = int(rest[1]-'0'), rest[2:]
		}
		switch {
		case strings.HasPrefix(rest, ":"):
			_, err = fmt.Sscanf(rest, ":%d", &end)
		case rest != "":
			_, err = fmt.Sscanf(rest, "[%d:%d]", &first, &end)
		}
		if err != nil {
			s.t.Fatalf("blocks %q: %v", name, err)
		}
		if group < 0 {
			blocks = append(blocks, chain(uint64(name[0]), end)[first:]...)
		} else {
			blocks = append(blocks, groupRun(chain(uint64(name[0]), 2*end), uint32(group), first, end)...)
		}
	}
	return blocks
}

// remember keeps slots under the name of the option as.
func (s *story) remember(a storyArgs, slots []Slot) {
	if name := a.options["as"]; name != "" {
		s.slots[name] = slots
	}
}

// named are the slots of several names.
func (s *story) named(names string) (slots []Slot) {
	for name := range strings.SplitSeq(names, "+") {
		slots = append(slots, s.slots[name]...)
	}
	return slots
}

// fresh checks that a slot is granted at a generation that no client has seen.
func (s *story) fresh(slot Slot) {
	memory := Slot{Extent: slot.Extent, Index: slot.Index}
	if slot.Generation <= s.latest[memory] {
		s.t.Errorf("slot %+v is granted at a generation that clients have seen", slot)
	}
	s.latest[memory] = slot.Generation
}

func textOf(err error) string { return withError("", err) }

// withError is a result and the error that came with it. Slots and sessions have ids that
// differ from run to run: of their errors only the kind is told.
func withError(result string, err error) string {
	if err == nil {
		return result
	}
	text := err.Error()
	for _, kind := range []error{ErrBadSlot, ErrNoSession} {
		if errors.Is(err, kind) {
			text = kind.Error()
		}
	}
	return strings.TrimPrefix(result+", "+text, ", ")
}

func storyTier(name string) kv.Tier {
	return map[string]kv.Tier{"host": kv.TierHost, "disk": kv.TierDisk, "device": kv.TierDevice}[name]
}

// fork is a block and two that come after it.
func fork() (root, left, right Block) {
	root = chain(1, 1)[0]
	id := NewIdentifier()
	return root, id.Next(&root, blockTokens(1)), id.Next(&root, blockTokens(2))
}

// told is how much a sink has heard.
type told struct{ stores, resident int }

func (s *orderSink) told() told {
	s.mu.Lock()
	defer s.mu.Unlock()
	return told{len(s.stores), len(s.resident)}
}

// refusingFilter counts the offers of blocks to the disk and refuses them.
type refusingFilter struct{ offers atomic.Int64 }

func (f *refusingFilter) ShouldOffload(kv.SequenceHash) bool {
	f.offers.Add(1)
	return false
}

// same reports whether two names are of the same memory, at whatever generation.
func same(a, b Slot) bool { return a.Extent == b.Extent && a.Index == b.Index }

// fill grants as many new blocks as there is room for and tells their slots.
func (p *testPool) fill(seed uint64) []Slot {
	p.t.Helper()
	var slots []Slot
	for i := range uint64(16) {
		res, err := p.Grant(p.sid, chain(seed<<8+i, 1), 0)
		if err != nil {
			p.t.Fatalf("grant: %v", err)
		}
		for _, g := range res.Grants {
			slots = append(slots, g.Slot)
		}
	}
	p.check()
	return slots
}
