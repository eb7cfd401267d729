package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childVariable, when set, makes the test binary one of the demo's children.
const childVariable = "DEMO_TEST_CHILD"

// misbehaveVariable says which fake child does something wrong, and what, as in
// "router=die".
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

// childMain behaves as the first argument says.
func childMain(args []string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	switch args[0] {
	case "agent", "sim-engine", "router":
		return fakeMain(args, term)
	case "obedient":
		fmt.Println(`{"ready":true,"http":"somewhere"}`)
		<-term
		fmt.Fprintln(os.Stderr, "drained")
		return 0
	case "stubborn":
		fmt.Println(`{"ready":true}`)
		select {}
	case "silent":
		fmt.Fprintln(os.Stderr, "waiting for a disk")
		<-term
		return 0
	case "garbled":
		fmt.Println("listening on port 80")
		<-term
		return 0
	case "doomed":
		for i := range 20 {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
		return 3
	case "short-lived":
		fmt.Println(`{"ready":true}`)
		fmt.Fprintln(os.Stderr, "out of luck")
		return 4
	case "parent":
		return parentMain(args[1])
	}
	return 99
}

// parentMain starts a stubborn child through a supervisor, tells its process id
// and never ends by itself.
func parentMain(logDir string) int {
	sup := newSupervisor(os.Args[0], logDir, func(error) {})
	if err := sup.start(context.Background(), processSpec{Name: "grandchild", Args: []string{"stubborn"}, ReadyTimeout: time.Minute}, new(struct{})); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf(`{"ready":true,"pid":%d}`+"\n", sup.procs[0].cmd.Process.Pid)
	select {}
}

// fakeMain is an agent, engine or router that knows just enough for a demo
// without blocks: engines claim to have served one token from each tier.
func fakeMain(args []string, term chan os.Signal) int {
	kind, misdeed, _ := strings.Cut(os.Getenv(misbehaveVariable), "=")
	if kind != args[0] {
		misdeed = ""
	}
	if misdeed == "die" {
		fmt.Fprintln(os.Stderr, "no room for "+args[0])
		return 5
	}
	flags := make(map[string]string)
	for _, a := range args[1:] {
		name, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		flags[name] = value
	}
	mux := http.NewServeMux()
	switch args[0] {
	case "agent":
		fakeAgent(mux)
	case "sim-engine":
		fakeEngine(mux, flags, misdeed)
	case "router":
		fakeRouter(mux)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go http.Serve(l, mux)
	fmt.Printf(`{"ready":true,"socket":%q,"admin":%q,"http":%q}`+"\n", flags["socket"], l.Addr(), l.Addr())
	<-term
	return 0
}

func reply(w http.ResponseWriter, v any) { json.NewEncoder(w).Encode(v) }

func fakeAgent(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, agentStats{Quiet: true, Events: EventCounts{In: 10, Out: 9, Gaps: 2, Repaired: 2}})
	})
	mux.HandleFunc("GET /v1/pools", func(w http.ResponseWriter, _ *http.Request) { reply(w, []agentPool{}) })
}

func fakeEngine(mux *http.ServeMux, flags map[string]string, misdeed string) {
	var resets atomic.Uint64
	drops, _ := strconv.ParseUint(flags["drop-frames"], 10, 64)
	id, _ := strconv.ParseUint(flags["worker-id"], 10, 64)
	mux.HandleFunc("POST /v1/generate", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Tokens []uint32 `json:"tokens"`
		}
		json.NewDecoder(r.Body).Decode(&body)
		if misdeed == "hang" {
			<-r.Context().Done()
			return
		}
		reply(w, map[string]any{"event": "first_token", "served": Served{1, 1, 1, uint64(len(body.Tokens)) - 3}})
		reply(w, map[string]any{"event": "done", "output": []uint32{7}})
	})
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
		s := engineState{WorkerID: id, Idle: true}
		s.Stats.FramesDropped, s.Stats.Resets = drops, resets.Load()
		if misdeed == "wrong byte" {
			s.Stats.WrongBytes = 1
		}
		reply(w, s)
	})
	mux.HandleFunc("POST /v1/reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]bool{"success": resets.Add(1) > 0})
	})
}

func fakeRouter(mux *http.ServeMux) {
	var turn atomic.Uint64
	mux.HandleFunc("GET /v1/feeds", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, []routerFeed{{Owner: "worker 1/0"}, {Owner: "worker 2/0"}, {Owner: "worker 3/0"}, {Owner: "worker 4/0"}})
	})
	mux.HandleFunc("GET /v1/dump", func(w http.ResponseWriter, _ *http.Request) { reply(w, routerDump{}) })
	mux.HandleFunc("POST /v1/route", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{"worker_id": 1 + turn.Add(1)%4, "success": true})
	})
}
