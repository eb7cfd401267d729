package join

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestAnOwnerHoldsWhatItAnnounces: as many blocks, no block twice, and their digest.
func TestAnOwnerHoldsWhatItAnnounces(t *testing.T) {
	common := make(map[kv.SequenceHash]int)
	for number := range uint64(600) {
		o := newOwner(kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(number)}), kv.TierDevice, number, 2*documentBlocks+7)
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
		"agents -1": {Agents: -1}, "engines 65": {Engines: 65}, "blocks -1": {Blocks: -1}, "link 1000 bytes": {LinkBytes: 1000}, "patience -1ns": {Patience: -1},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if err := Run(context.Background(), o); err == nil {
			t.Errorf("%s: a run", want)
		}
	}
}
