package demo

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/cluster"
	simengine "github.com/blockyard-ai/blockyard/lab/engine"
)

// childVariable, when set, makes the test binary one of the demo's children.
const childVariable = "DEMO_TEST_CHILD"

// misbehaveVariable says which fake child does something wrong, and what, as in
// "router=die"; "@" and the name of a run at the end limit it to that run.
const misbehaveVariable = "DEMO_TEST_MISBEHAVE"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(childMain(os.Args[1:]))
	}
	os.Setenv(childVariable, "1")
	// Under the race detector a process lingers for a second by default.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	goleak.VerifyTestMain(m)
}

// childMain behaves as the first argument says and returns its exit status.
func childMain(args []string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	return fakeMain(args, term)
}

// fakeMain is an agent, engine or router that knows just enough for a demo of
// four engines on two nodes: each owner holds one block all the time, and engines
// say that one block of each prompt came from each tier that is on.
func fakeMain(args []string, term chan os.Signal) int {
	flags := make(map[string]string)
	for _, a := range args[1:] {
		name, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		flags[name] = value
	}
	misdeed := misdeedOf(args[0], flags)
	if misdeed == "die" {
		fmt.Fprintln(os.Stderr, "no room for "+args[0])
		return 5
	}
	mux := http.NewServeMux()
	switch args[0] {
	case "agent":
		fakeAgent(mux, flags, misdeed)
	case "sim-engine":
		fakeEngine(mux, flags, misdeed)
	case "router":
		fakeRouter(mux, misdeed)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go http.Serve(l, mux)
	fmt.Printf(`{"ready":true,"socket":%q,"admin":%q,"control":%q,"http":%q}`+"\n", flags["socket"], l.Addr(), l.Addr(), l.Addr())
	<-term
	return 0
}

// misdeedOf returns what a child of this kind and with these flags is to do wrong.
func misdeedOf(kind string, flags map[string]string) string {
	who, what, _ := strings.Cut(os.Getenv(misbehaveVariable), "=")
	what, run, _ := strings.Cut(what, "@")
	if who != kind || !strings.HasSuffix(runOf(flags), run) {
		return ""
	}
	return what
}

// runOf ends with the name of the run that a child belongs to. Engines know it
// from the directory of their agent's socket, the others from the cluster.
func runOf(flags map[string]string) string {
	if socket := flags["agent-socket"]; socket != "" {
		return filepath.Base(filepath.Dir(socket))
	}
	return flags["cluster"]
}

func reply(w http.ResponseWriter, v any) { json.NewEncoder(w).Encode(v) }

// A fake agent on node n has the streams of engines n and n+2, and of its pool n.
func fakeAgent(mux *http.ServeMux, flags map[string]string, misdeed string) {
	n, _ := strconv.ParseUint(strings.TrimPrefix(flags["node"], "node-"), 10, 64)
	stats := cluster.AgentStats{Quiet: true, Events: cluster.EventCounts{In: 10, Out: 9, Gaps: 2, Repaired: 2}}
	for _, owner := range []kv.Owner{fakeWorker(n), fakeWorker(n + 2), kv.PoolOwner(n)} {
		stats.Streams = append(stats.Streams, cluster.AgentStream{Owner: owner.String(), PublisherID: "p " + owner.String(), LastEventID: 3, Health: "exact"})
	}
	switch misdeed {
	case "degraded stream":
		stats.Streams[0].Health = "degraded"
	case "unrepaired gap":
		stats.Events.Repaired = 1
	}
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) { reply(w, stats) })
	mux.HandleFunc("GET /v1/pools", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, []cluster.AgentPool{{Pool: n, Blocks: []cluster.Block{{Hash: "00000000000000aa", Tiers: []string{"host_pinned", "disk"}}}}})
	})
}

func fakeWorker(n uint64) kv.Owner { return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(n)}) }

func fakeEngine(mux *http.ServeMux, flags map[string]string, misdeed string) {
	var resets, verified atomic.Uint64
	drops, _ := strconv.ParseUint(flags["drop-frames"], 10, 64)
	id, _ := strconv.ParseUint(flags["worker-id"], 10, 64)
	block, _ := strconv.ParseUint(flags["block-size"], 10, 64)
	offload := misdeed == "load" || runOf(flags) != "no_offload"
	mux.HandleFunc("POST /v1/generate", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Tokens []uint32 `json:"tokens"`
			Output int      `json:"output_tokens"`
		}
		json.NewDecoder(r.Body).Decode(&body)
		served := Served{Device: block, Recomputed: uint64(len(body.Tokens)) - block}
		if offload {
			served = Served{block, block, block, uint64(len(body.Tokens)) - 3*block}
			verified.Add(2)
		}
		switch misdeed {
		case "hang":
			<-r.Context().Done()
			return
		case "miscount":
			served.Recomputed--
		case "talk less":
			body.Output--
		}
		reply(w, map[string]any{"event": "first_token", "served": served})
		reply(w, map[string]any{"event": "done", "output": slices.Repeat([]uint32{7}, body.Output)})
	})
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
		s := simengine.State{WorkerID: id, Idle: true, Blocks: []string{"00000000000000aa"}}
		s.Stats.FramesDropped, s.Stats.Resets, s.Stats.BlocksVerified = drops, resets.Load(), verified.Load()
		switch misdeed {
		case "wrong byte":
			s.Stats.WrongBytes = 1
		case "verify nothing":
			s.Stats.BlocksVerified = 0
		case "lose a block":
			s.Blocks = nil
		}
		reply(w, s)
	})
	mux.HandleFunc("POST /v1/reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]bool{"success": resets.Add(1) > 0})
	})
}

// dumpRow returns one element of a router's dump.
func dumpRow(o kv.Owner, tier kv.Tier, hashes ...kv.SequenceHash) (row kvevent.StoredJSON) {
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: o, Tier: tier}
	for _, h := range hashes {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
	}
	row.Set(&e)
	return row
}

func fakeRouter(mux *http.ServeMux, misdeed string) {
	var turn atomic.Uint64
	feeds, dump := []cluster.RouterFeed{}, cluster.RouterDump{}
	for n := range uint64(4) {
		dump = append(dump, dumpRow(fakeWorker(n+1), kv.TierDevice, 0xaa))
	}
	for n := range uint64(2) {
		dump = append(dump, dumpRow(kv.PoolOwner(n+1), kv.TierHost, 0xaa), dumpRow(kv.PoolOwner(n+1), kv.TierDisk, 0xaa))
	}
	for i := range dump {
		owner := dump[i].Owner()
		if dump[i].Tier == kv.TierDisk.String() {
			continue
		}
		feeds = append(feeds, cluster.RouterFeed{Owner: owner.String(), PublisherID: "p " + owner.String(), Cursor: 3, Announced: 3, Health: "exact", DigestOK: true})
	}
	if misdeed == "wrong digest" {
		feeds[1].DigestOK = false
	}
	mux.HandleFunc("GET /v1/feeds", func(w http.ResponseWriter, _ *http.Request) { reply(w, feeds) })
	mux.HandleFunc("GET /v1/dump", func(w http.ResponseWriter, _ *http.Request) { reply(w, dump) })
	mux.HandleFunc("POST /v1/route", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Method string }
		json.NewDecoder(r.Body).Decode(&body)
		worker := uint64(1)
		if body.Method == "new" && misdeed != "favour" {
			worker = 1 + turn.Add(1)%4
		}
		if misdeed == "hang" {
			<-r.Context().Done()
			return
		}
		reply(w, map[string]any{"worker_id": worker, "success": true})
	})
}
