package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// The self-test's own small set-up: a host tier of a thousand blocks of 4 KiB,
// which prompts of a hundred blocks soon push out to disk.
const (
	selftestBlockSize    = 16
	selftestDeviceBlocks = 512
	selftestHostBytes    = 4 << 20
	selftestDiskBytes    = 64 << 20
	selftestSpeedUp      = 20
	// selftestFlips is the number of flipped bytes in each tier, one a prompt,
	// selftestControls the number of prompts left whole.
	selftestFlips    = 4
	selftestControls = 2
	// promptBlocks is the number of full blocks of a checked prompt, fillerBlocks that
	// of a prompt that only takes space. maxFillers bounds the fillers.
	promptBlocks = 8
	fillerBlocks = 200
	maxFillers   = 40
	// selftestLookupWait is real time: no read may come after it on a busy machine.
	selftestLookupWait = 5 * time.Second
)

// Selftest shows with one agent and one engine that the byte check is not blind. The
// engine must find every byte flipped in host memory. No byte flipped on disk may reach
// the engine. Of o it uses Programs, NATSURL, Dir, Report, KeepLogs and the outputs.
func Selftest(ctx context.Context, o Options) error {
	own := Defaults("", 0)
	own.Programs, own.NATSURL, own.Dir, own.Report, own.KeepLogs = o.Programs, o.NATSURL, o.Dir, o.Report, o.KeepLogs
	own.Out, own.Err, own.Terminal, own.Color = o.Out, o.Err, o.Terminal, o.Color
	own.limits = o.limits
	own.limits = limitsFor(&own, nil)
	if err := own.check(); err != nil {
		return err
	}
	d, err := cluster.MakeDirs("blockyard-demo", own.Dir, "", selftestHostBytes)
	if err != nil {
		return err
	}
	out := &display{out: own.Out, terminal: own.Terminal}
	watched, cancel := watch(ctx, own.limits.whole)
	defer cancel()
	return finish(ctx, &own, out, d, selftestIn(watched, &own, d, out))
}

// selftestIn runs the self-test in the directories d with an agent and an engine of its own, and
// prints its result.
func selftestIn(ctx context.Context, o *Options, d *cluster.Dirs, out *display) error {
	rd, err := d.Sub("selftest")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	spec := clusterSpec{
		Options: cluster.Options{
			Programs: o.Programs, NATSURL: o.NATSURL, Name: filepath.Base(d.Work), Dirs: rd, Died: func(err error) { cancel(err) },
		},
		nodes: 1, engines: 1,
		blockSize: selftestBlockSize, deviceBlocks: selftestDeviceBlocks,
		hostBytes: selftestHostBytes, diskBytes: selftestDiskBytes,
		seed: o.Seed, speedUp: selftestSpeedUp, prefillRate: o.PrefillRate,
		lookupWait: selftestLookupWait,
	}
	c := &demoCluster{Cluster: cluster.New(spec.Options)}
	defer c.Close(interruptBudget)
	out.say("self-test: flipping %d bytes in host memory and %d on disk", selftestFlips, selftestFlips)
	if err := c.start(ctx, spec); err != nil {
		return explain(ctx, err)
	}
	t := &selftest{c: c, calls: &caller{o.limits}, report: SelftestReport{Reasons: []string{}}}
	if err := t.hostPart(ctx); err != nil {
		return explain(ctx, fmt.Errorf("self-test, host part: %w", err))
	}
	if err := t.diskPart(ctx); err != nil {
		return explain(ctx, fmt.Errorf("self-test, disk part: %w", err))
	}
	return t.conclude(o, out)
}

// conclude prints the checks and writes the report to --report. It returns ErrFailed when a check
// failed.
func (t *selftest) conclude(o *Options, out *display) error {
	out.print(renderChecks(t.checks, o.Color))
	for _, c := range t.checks {
		if !c.ok() {
			t.report.Reasons = append(t.report.Reasons, fmt.Sprintf("selftest: %s: %d, want %s", c.what, c.got, c.want()))
		}
	}
	t.report.Passed = len(t.report.Reasons) == 0
	if o.Report != "" {
		if err := writeReport(o.Report, &t.report); err != nil {
			return err
		}
	}
	if t.report.Passed {
		return nil
	}
	for _, reason := range t.report.Reasons {
		fmt.Fprintln(o.Err, reason)
	}
	return fmt.Errorf("self-test: %w (%d of %d)", ErrFailed, len(t.report.Reasons), len(t.checks))
}

// explain returns the cause for which ctx ended, else err. The death of a process
// explains more than the call that failed by it.
func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// check is one figure of the self-test and the range in which it must lie.
type check struct {
	what     string
	got      uint64
	min, max uint64
}

func (c check) ok() bool { return c.got >= c.min && c.got <= c.max }

// want returns the accepted range of the check's value as text.
func (c check) want() string {
	switch c.max {
	case c.min:
		return fmt.Sprintf("%d", c.min)
	case math.MaxUint64:
		return fmt.Sprintf("at least %d", c.min)
	}
	return fmt.Sprintf("%d to %d", c.min, c.max)
}

// selftest is a self-test under way.
type selftest struct {
	c     *demoCluster
	calls *caller
	// sent counts requests, for their ids.
	sent   int
	checks []check
	report SelftestReport
}

func (t *selftest) exactly(what string, got, want uint64) {
	t.checks = append(t.checks, check{what, got, want, want})
}

func (t *selftest) atLeast(what string, got, want uint64) {
	t.checks = append(t.checks, check{what, got, want, math.MaxUint64})
}

// flips is what one part of the self-test saw. clean is of the prompts with whole blocks, which are the
// control, and dirty of those with a flipped byte. between is the cluster after the first.
type flips struct {
	clean, dirty           Served
	before, between, after settled
}

// flip stores the blocks of prompts, brings them to a tier with settle, and flips a byte in the last
// block of some prompts. at returns where a block lies. flip then sends all prompts again.
func (t *selftest) flip(ctx context.Context, name string, settle func(context.Context, []prompt) (settled, error), at func(cluster.Block) cluster.Location) (*flips, error) {
	prompts := makePrompts(name, selftestFlips+selftestControls, promptBlocks)
	if err := t.send(ctx, prompts, nil); err != nil {
		return nil, err
	}
	var f flips
	var err error
	if f.before, err = settle(ctx, prompts); err != nil {
		return nil, err
	}
	if err := t.c.engines[0].resetCache(ctx, t.calls, resetPatience); err != nil {
		return nil, err
	}
	blocks := f.before.byHash()
	flipped, whole := prompts[:selftestFlips], prompts[selftestFlips:]
	for i, p := range flipped {
		place := at(blocks[p.last()])
		if place.Path == "" {
			return nil, fmt.Errorf("block %s is not in the %s tier", p.last(), name)
		}
		if err := flipByte(place, i); err != nil {
			return nil, err
		}
	}
	if err := t.send(ctx, whole, &f.clean); err != nil {
		return nil, err
	}
	if f.between, err = t.rest(ctx); err != nil {
		return nil, err
	}
	if err := t.send(ctx, flipped, &f.dirty); err != nil {
		return nil, err
	}
	f.after, err = t.rest(ctx)
	return &f, err
}

// hostPart flips bytes in the host tier, which agents trust by design. The engine's comparison must
// find each one; otherwise a run's zero wrong bytes would mean nothing.
func (t *selftest) hostPart(ctx context.Context) error {
	f, err := t.flip(ctx, "host", func(ctx context.Context, _ []prompt) (settled, error) { return t.rest(ctx) },
		func(b cluster.Block) cluster.Location { return b.Host })
	if err != nil {
		return err
	}
	t.exactly("host, whole blocks: tokens loaded", f.clean.Host, selftestControls*promptBlocks*selftestBlockSize)
	t.exactly("host, whole blocks: wrong bytes", f.between.wrongBytes()-f.before.wrongBytes(), 0)
	t.report.HostFlipped, t.report.WrongBytes = selftestFlips, f.after.wrongBytes()-f.between.wrongBytes()
	t.exactly("host, one byte flipped in each of 4 blocks: wrong bytes", t.report.WrongBytes, selftestFlips)
	return nil
}

// diskPart flips bytes of blocks that are only on disk. The agent must refuse each block, and the
// engine computes it.
func (t *selftest) diskPart(ctx context.Context) error {
	f, err := t.flip(ctx, "disk", t.pushOut, func(b cluster.Block) cluster.Location { return b.Disk })
	if err != nil {
		return err
	}
	// One token of each prompt is always computed.
	const block = selftestBlockSize
	t.exactly("disk, whole blocks: tokens loaded", f.clean.Disk, selftestControls*promptBlocks*block)
	t.report.DiskFlipped, t.report.DiskWrongBytes = selftestFlips, f.after.wrongBytes()-f.before.wrongBytes()
	t.report.Misses = (max(f.dirty.Recomputed, selftestFlips) - selftestFlips) / block
	t.exactly("disk, one byte flipped in each of 4 blocks: wrong bytes", t.report.DiskWrongBytes, 0)
	t.atLeast("disk, one byte flipped in each of 4 blocks: refused reads", f.after.corruptReads()-f.before.corruptReads(), selftestFlips)
	t.exactly("disk, one byte flipped in each of 4 blocks: tokens recomputed", f.dirty.Recomputed, selftestFlips*(block+1))
	return nil
}

// send has the engine answer prompts one after the other, and adds to total, unless it is nil,
// where their KV came from.
func (t *selftest) send(ctx context.Context, prompts []prompt, total *Served) error {
	for _, p := range prompts {
		t.sent++
		id := fmt.Sprintf("selftest-%d", t.sent)
		_, err := t.calls.generate(ctx, t.c.engines[0].Endpoint, id, p.tokens, 1, func(s Served) {
			if total != nil {
				total.add(s)
			}
		})
		if err != nil {
			return fmt.Errorf("request %s: %w", id, err)
		}
	}
	return nil
}

// pushOut sends other prompts until those evict the blocks of prompts from host memory, so that
// they are on disk only. It returns the state of the cluster then.
func (t *selftest) pushOut(ctx context.Context, prompts []prompt) (settled, error) {
	if _, err := t.rest(ctx); err != nil {
		return settled{}, err
	}
	for n := range maxFillers {
		filler := makePrompts(fmt.Sprintf("filler %d", n), 1, fillerBlocks)
		if err := t.send(ctx, filler, nil); err != nil {
			return settled{}, err
		}
		s, err := t.rest(ctx)
		if err != nil {
			return settled{}, err
		}
		if onDiskAlone(s.byHash(), prompts) {
			return s, nil
		}
	}
	return settled{}, fmt.Errorf("blocks are still not on disk alone after %d blocks of other prompts", maxFillers*fillerBlocks)
}

// onDiskAlone reports whether the disk tier, and no other, has every block of prompts.
func onDiskAlone(blocks map[string]cluster.Block, prompts []prompt) bool {
	for _, p := range prompts {
		for _, hash := range p.hashes {
			if strings.Join(blocks[hash].Tiers, " ") != kv.TierDisk.String() {
				return false
			}
		}
	}
	return true
}

// rest waits until all processes are idle and returns their state. A process that stays busy, or
// a stream that missed an event, is an error.
func (t *selftest) rest(ctx context.Context) (settled, error) {
	s, err := t.c.settle(ctx, t.calls.limits)
	if err != nil {
		return settled{}, err
	}
	if s.Moving != "" {
		return settled{}, fmt.Errorf("no rest within %s: %s", t.calls.limits.settle, s.Moving)
	}
	if len(s.Inexact) > 0 {
		return settled{}, errors.New(s.Inexact[0])
	}
	return s, nil
}

// prompt is a prompt of full blocks and one more token, which an engine always
// computes. hashes name its blocks.
type prompt struct {
	tokens []uint32
	hashes []string
}

func (p *prompt) last() string { return p.hashes[len(p.hashes)-1] }

// makePrompts returns n prompts that share no block with prompts of another name.
func makePrompts(name string, n, blocks int) []prompt {
	var h kv.Hasher
	prompts := make([]prompt, n)
	for i := range prompts {
		p := &prompts[i]
		stream := workload.StreamOf(fmt.Sprintf("selftest %s %d", name, i))
		p.tokens = workload.Piece{Stream: stream, Tokens: blocks*selftestBlockSize + 1}.AppendTokens(nil)
		locals := h.AppendLocals(nil, p.tokens, selftestBlockSize, kv.LocalSeed("", ""))
		for _, s := range kv.AppendSequence(nil, locals) {
			p.hashes = append(p.hashes, fmt.Sprintf("%016x", uint64(s)))
		}
	}
	return prompts
}

// flipByte inverts one bit of the nth block, at another place for each n, and syncs the
// file.
func flipByte(at cluster.Location, nth int) (err error) {
	f, err := os.OpenFile(at.Path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("flip a byte: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	const stride = 1021 // a prime: first byte, then all over the block
	offset := at.Offset + int64(nth*stride)
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		return fmt.Errorf("flip a byte: %w", err)
	}
	b[0] ^= 1 << (nth % 8)
	if _, err := f.WriteAt(b[:], offset); err != nil {
		return fmt.Errorf("flip a byte: %w", err)
	}
	return f.Sync()
}
