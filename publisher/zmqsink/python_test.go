package zmqsink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// salted knows the chain's blocks as numbered does, from block 3 on with an adapter and
// a salt.
type salted struct{ numbered }

func (k salted) Describe(h kv.SequenceHash, e *engineevent.Event) bool {
	k.numbered.Describe(h, e)
	if h >= 3 {
		e.LoRAName, e.Salt = "adapter", "tenant"
	}
	return true
}

// A program that knows nothing of this one reads the stream with the library that
// vLLM writes its own with.
func TestPythonConsumerReadsTheStream(t *testing.T) {
	env := os.Getenv("BLOCKYARD_EVENTS_ENV")
	if env == "" {
		t.Skip("BLOCKYARD_EVENTS_ENV names no Python environment with pyzmq and msgspec; scripts/events-env.sh makes one")
	}
	s := newStream()
	sink, err := New(Options{
		Bind: "tcp://127.0.0.1:*", Worker: testWorker, BlockSize: 4, Topic: "kv", ReannounceEvery: time.Millisecond,
	}, s, salted{})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	s.sink = sink
	s.store(device, 1, 4)
	s.remove(device, 4)
	s.store(host, 1, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(env, "bin", "python"), "testdata/consumer.py", sink.Endpoint(), sink.ReplayEndpoint(), "4").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var got struct {
		Held  [][]any  `json:"held"`
		Seqs  []uint64 `json:"seqs"`
		Ranks []int    `json:"ranks"`
		Same  int      `json:"same"`
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	want := []string{
		"[1 CPU_TIER1 <nil> [1 1 1 1] <nil> <nil>]",
		"[1 GPU <nil> [1 1 1 1] <nil> <nil>]",
		"[2 GPU 1 [2 2 2 2] <nil> <nil>]",
		"[3 GPU 2 [3 3 3 3] adapter tenant]",
	}
	var held []string
	for _, b := range got.Held {
		held = append(held, fmt.Sprint(b))
	}
	if !slices.Equal(held, want) {
		t.Errorf("the consumer holds %q, want %q", held, want)
	}
	if got.Same != len(got.Seqs) || len(got.Ranks) != 1 || strconv.Itoa(got.Ranks[0]) != fmt.Sprint(testWorker.Rank) {
		t.Errorf("batches %v of the ranks %v, %d of them the same by replay", got.Seqs, got.Ranks, got.Same)
	}
}
