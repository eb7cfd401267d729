package join

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestAnOwnerHoldsWhatItAnnounces: as many blocks, no block twice, and their digest.
func TestAnOwnerHoldsWhatItAnnounces(t *testing.T) {
	common := make(map[kv.SequenceHash]int)
	for number := range uint64(600) {
		o := newOwner(kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(number)}), kv.TierDevice, number, 2*documentBlocks+7, 0)
		events, last, digest := o.Snapshot()
		status, seen, sum := o.Status(), make(map[kv.SequenceHash]bool), uint64(0)
		for _, e := range events {
			for _, b := range e.Blocks {
				seen[b.Hash] = true
				common[b.Hash]++
				sum += kv.Digest(b.Hash, kv.TierDevice)
			}
		}
		if len(seen) != o.blocks || int(status.Blocks) != o.blocks || sum != digest || sum != status.Digest || last != status.LastEventID || int(last) != len(events) {
			t.Fatalf("owner %d: %d blocks of %d, %+v, last %d of %d events", number, len(seen), o.blocks, status, last, len(events))
		}
	}
	if len(common) == 600*(2*documentBlocks+7) {
		t.Error("no block is common")
	}
}

// pairs are the blocks of an owner, changed by events.
type pairs map[kv.SequenceHash]bool

func (p pairs) Publish(events []kvevent.RouterEvent) {
	for i := range events {
		for _, h := range events[i].Removed {
			delete(p, h)
		}
		for _, b := range events[i].Blocks {
			p[b.Hash] = true
		}
	}
}

// TestReplacedDocumentsAreTheEvents: the first blocks with the events of all replacements are the blocks that the owner then
// has, and those of an owner that starts with as many replacements.
func TestReplacedDocumentsAreTheEvents(t *testing.T) {
	held := make(pairs)
	o := newOwner(kv.PoolOwner(1), kv.TierHost, 3, 2*documentBlocks+7, 0)
	first, last, _ := o.Snapshot()
	held.Publish(first)
	o.sink = held
	for n := range uint64(7) {
		o.replace()
		events, now, digest := o.Snapshot()
		again, status := newOwner(o.who, o.tier, o.number, o.blocks, n+1), o.Status()
		has, sum := make(pairs), uint64(0)
		has.Publish(events)
		for h := range held {
			sum += kv.Digest(h, kv.TierHost)
		}
		if !maps.Equal(has, held) || len(held) != o.blocks || digest != sum || again.Status() != status || now != last+2 || status.LastEventID != now {
			t.Fatalf("after %d: %d blocks, held %d of %d; digest %x, want %x; last %d after %d; %+v, want %+v", n+1, len(has), len(held), o.blocks, digest, sum, now, last, status, again.Status())
		}
		last = now
	}
}

// TestADumpIsComparedByOwner: tier, hash and LocalHash of each block count.
func TestADumpIsComparedByOwner(t *testing.T) {
	o := newOwner(kv.PoolOwner(1), kv.TierHost, 3, 2*documentBlocks+7, 2)
	read := func(spoil func(e *kvevent.RouterEvent)) content {
		var dump bytes.Buffer
		separator := "["
		o.visit(func(e *kvevent.RouterEvent) {
			if spoil(e); len(e.Blocks) == 0 {
				return
			}
			var line kvevent.StoredJSON
			line.Set(e)
			dump.WriteString(separator)
			if err := json.NewEncoder(&dump).Encode(&line); err != nil {
				t.Fatal(err)
			}
			separator = ","
		})
		dump.WriteString("]\n")
		sums := make(map[kv.Owner]content)
		if err := readDump(&dump, sums); err != nil || len(sums) != 1 {
			t.Fatalf("%v, %d owners", err, len(sums))
		}
		return sums[o.who]
	}
	right := read(func(*kvevent.RouterEvent) {})
	if right.blocks != o.blocks || right.digest != o.digest {
		t.Errorf("%+v, want %d blocks and digest %x", right, o.blocks, o.digest)
	}
	for name, spoil := range map[string]func(e *kvevent.RouterEvent){
		"a tier": func(e *kvevent.RouterEvent) { e.Tier = kv.TierDisk }, "a hash": func(e *kvevent.RouterEvent) { e.Blocks[0].Hash++ },
		"a LocalHash": func(e *kvevent.RouterEvent) { e.Blocks[0].Local++ }, "a block": func(e *kvevent.RouterEvent) { e.Blocks = e.Blocks[1:] },
	} {
		if got := read(func(e *kvevent.RouterEvent) {
			if e.ID == 1 {
				spoil(e)
			}
		}); got == right {
			t.Errorf("%s differs, and the sums are equal", name)
		}
	}
	if err := readDump(strings.NewReader(`[{"storage_tier":"device"`), make(map[kv.Owner]content)); err == nil {
		t.Error("a dump that was cut off is read")
	}
}

// TestALinkCarriesEverythingAtItsPace: the bytes of all connections, one after the other.
func TestALinkCarriesEverythingAtItsPace(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				question := make([]byte, 5)
				if _, err := io.ReadFull(c, question); err == nil && string(question) == "hello" {
					_, _ = c.Write(sent)
				}
			}()
		}
	}()
	k, err := openLink(l.Addr().String(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	for range 2 {
		c, err := net.Dial("tcp", k.address())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(sent), err)
		}
		_ = c.Close()
	}
	if k.bytes.Load() != uint64(2*len(sent)) || k.connections.Load() != 2 {
		t.Errorf("%d bytes, %d connections", k.bytes.Load(), k.connections.Load())
	}

	slow, now := &link{perByte: 1024 * time.Second / 1000}, time.Unix(1, 0)
	for _, want := range []time.Duration{time.Second - linkBurst, 2*time.Second - linkBurst} {
		if got := slow.reserve(1000, now); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if got := slow.reserve(500, now.Add(time.Minute)); got != time.Second/2-linkBurst {
		t.Errorf("%v after a pause, want half a second less the burst", got)
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for want, o := range map[string]Options{
		"agents -1": {Agents: -1}, "engines 65": {Engines: 65}, "blocks -1": {Blocks: -1}, "missed 1001": {Missed: 1001}, "link 1000 bytes": {LinkBytes: 1000}, "patience -1ns": {Patience: -1},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if err := Run(context.Background(), o); err == nil {
			t.Errorf("%s: a run", want)
		}
	}
}
