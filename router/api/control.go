package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/console"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
)

// ControlHandler returns the HTTP handler for operators: GET /v1/dump, GET /v1/bookings, POST /v1/route with all
// methods, POST /busy_threshold, POST /v1/snapshot, POST and DELETE /v1/workers with a registry,
// draining of worker servers, and the read-only paths of Handler. Without Options.Tokens the handler
// has no authentication: serve it with ServeControl, on a listener of package control that only
// operators reach.
func (a *API) ControlHandler() http.Handler {
	mux := http.NewServeMux()
	a.inspection(mux)
	mux.HandleFunc("GET /v1/dump", a.dump)
	mux.HandleFunc("GET /v1/bookings", a.bookings)
	mux.HandleFunc("POST /v1/route", func(w http.ResponseWriter, req *http.Request) { a.route(w, req, true) })
	mux.HandleFunc("POST /busy_threshold", a.setBusy)
	mux.HandleFunc(snapshotPath, a.snapshot)
	if g := a.router.Registry(); g != nil {
		a.register(mux, g)
	}
	if a.directory != nil {
		a.draining(mux, a.directory)
	}
	open := http.NewServeMux()
	console.Mount(open, console.Router, a.version) // it has no data, so that it needs no token
	return a.operators.HandlerBeside(open, mux)
}

// snapshotPath is the path by which operators have a snapshot saved.
const snapshotPath = "POST /v1/snapshot"

// snapshot answers POST /v1/snapshot: the router begins to save one. With dry_run it does not.
func (a *API) snapshot(w http.ResponseWriter, req *http.Request) {
	dryRun, err := dryRunOf(req)
	if err != nil {
		a.fail(w, http.StatusBadRequest, err)
		return
	}
	control.About(req, aboutDryRun("the index", dryRun))
	keeper := a.router.Snapshots()
	if !keeper.HasStore() {
		a.fail(w, http.StatusConflict, errors.New("snapshot: the router has no store; want --durable-kv-events and a NATS server with JetStream"))
		return
	}
	if !dryRun {
		keeper.Want()
	}
	s := keeper.Stats()
	a.answer(w, http.StatusOK, snapshotAnswer{Begun: !dryRun, DryRun: dryRun, Saved: s.Saved, Failed: s.Failed})
}

// snapshotAnswer says whether a snapshot is begun, and counts the earlier ones.
type snapshotAnswer struct {
	Begun  bool   `json:"begun"`
	DryRun bool   `json:"dry_run"`
	Saved  uint64 `json:"saved"`
	Failed uint64 `json:"failed"`
}

// aboutDryRun returns what a call is about, for the log.
func aboutDryRun(what string, dryRun bool) string {
	if dryRun {
		what += ", dry run"
	}
	return what
}

// dryRunOf returns the query parameter dry_run of an operator's call; false when it is absent.
func dryRunOf(req *http.Request) (bool, error) {
	text := req.URL.Query().Get("dry_run")
	if text == "" {
		return false, nil
	}
	dryRun, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("dry_run: %.20q, want true or false", text)
	}
	return dryRun, nil
}

// ServeControl answers operators on l until ctx ends, as Serve does.
func (a *API) ServeControl(ctx context.Context, l net.Listener) error {
	return a.serve(ctx, l, a.ControlHandler(), drainTimeout)
}

// controlOnly refuses the paths that only ControlHandler serves.
func (a *API) controlOnly(mux *http.ServeMux, patterns ...string) {
	for _, p := range patterns {
		mux.HandleFunc(p, func(w http.ResponseWriter, _ *http.Request) {
			a.fail(w, http.StatusForbidden, fmt.Errorf("%s: only on the control listener (--control)", p))
		})
	}
}

// dumpWriteTimeout bounds how long a client may take to read a piece of a dump.
const dumpWriteTimeout = 30 * time.Second

// deadlineWriter gives the client dumpWriteTimeout for each write.
type deadlineWriter struct{ http.ResponseWriter }

// Write implements io.Writer.
func (w deadlineWriter) Write(b []byte) (int, error) {
	// Some http.ResponseWriters have no deadlines.
	if err := http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(dumpWriteTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return w.ResponseWriter.Write(b)
}

// dump answers GET /v1/dump: the indexes of all models, or of one name, as a JSON array with
// one stored event per line. A dump without the closing bracket was interrupted.
func (a *API) dump(w http.ResponseWriter, req *http.Request) {
	name := req.URL.Query().Get("model")
	models := a.router.Models(name)
	if name != "" && len(models) == 0 {
		a.fail(w, http.StatusNotFound, fmt.Errorf("model: %.64q: %w", name, router.ErrUnknownModel))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// The next request on the connection must not inherit the deadline.
	defer func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) }()
	out := bufio.NewWriterSize(deadlineWriter{w}, 64<<10)
	encoder := json.NewEncoder(out)
	var event kvevent.StoredJSON
	separator := byte('[')
	var failed error // the first error
	check := func(err error) bool {
		if err != nil && failed == nil {
			failed = err
		}
		return failed == nil
	}
	var id uint64
	write := func(e *kvevent.RouterEvent) bool {
		event.Set(e)
		event.Event.ID, id = id, id+1 // the dump numbers its events from 0 across models
		ok := check(out.WriteByte(separator)) && check(encoder.Encode(&event))
		separator = ','
		return ok
	}
	for _, m := range models {
		if failed == nil {
			m.Decide().DumpEvents(write)
		}
	}
	if separator == '[' { // no event was written
		check(out.WriteByte(separator))
	}
	if _, err := out.WriteString("]\n"); check(err) && check(out.Flush()) {
		return
	}
	a.undelivered(failed)
}
