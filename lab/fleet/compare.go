package fleet

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// booking is one entry of a router's list of bookings. Bookings compare with ==.
type booking struct {
	RequestID     string `json:"request_id"`
	Router        string `json:"router"`
	Own           bool   `json:"own"`
	WorkerID      uint64 `json:"worker_id"`
	PrefillTokens int64  `json:"prefill_tokens"`
	OutputBlocks  int    `json:"output_blocks"`
}

// difference is what a comparison of all routers found wrong, with examples for people.
type difference struct {
	compared, diverged, lost, double int
	first                            []string
}

func (d *difference) note(format string, args ...any) {
	if len(d.first) < 4 {
		d.first = append(d.first, fmt.Sprintf(format, args...))
	}
}

func (d *difference) clean() bool { return d.diverged+d.lost+d.double == 0 }

// compare compares the lists of all routers with the live requests of each. owners has the number of
// the router that booked each live request.
func compare(lists [][]booking, owners map[string]int) (d difference) {
	want := make(map[string]booking) // what each router must have: what the router of the booking has
	for i, list := range lists {
		for _, b := range list {
			if !b.Own {
				continue
			}
			b.Own = false
			want[b.RequestID] = b
			if owner, live := owners[b.RequestID]; !live || owner != i {
				d.diverged++
				d.note("router %d has booked %s, which no client has", i+1, b.RequestID)
			}
		}
	}
	for id, owner := range owners {
		if _, ok := want[id]; !ok {
			d.lost++
			d.note("router %d has lost %s", owner+1, id)
		}
	}
	for i, list := range lists {
		seen := make(map[string]bool)
		for _, b := range list {
			d.compared++
			b.Own = false
			switch w, ok := want[b.RequestID]; {
			case seen[b.RequestID]:
				d.double++
				d.note("router %d has %s twice", i+1, b.RequestID)
			case !ok:
				d.diverged++
				d.note("router %d has %s of router %s, which has ended", i+1, b.RequestID, b.Router)
			case w != b:
				d.diverged++
				d.note("router %d: %+v, want %+v", i+1, b, w)
			}
			seen[b.RequestID] = true
		}
		for id := range want {
			if !seen[id] {
				d.diverged++
				d.note("router %d lacks %s", i+1, id)
			}
		}
	}
	return d
}

// look compares the routers as they are now.
func (w *world) look(ctx context.Context) (difference, error) {
	routers, owners := w.all(), make(map[string]int)
	for id, at := range w.ledger.requests() {
		owners[id] = slices.Index(routers, at)
	}
	lists := make([][]booking, len(routers))
	for i, r := range routers {
		if err := r.Control.Get(ctx, "/v1/bookings", &lists[i]); err != nil {
			return difference{}, err
		}
	}
	return compare(lists, owners), nil
}

// settle waits for the quiet, and then compares. A run with patience tries again for that time.
func (w *world) settle(ctx context.Context) (difference, error) {
	began := time.Now()
	var agreed time.Duration // since when all routers have agreed
	for {
		d, err := w.look(ctx)
		if err != nil {
			return d, err
		}
		since := time.Since(began)
		switch {
		case !d.clean():
			agreed = 0
		case agreed == 0:
			agreed = since
		}
		if since >= w.o.Quiet && d.clean() || since >= w.o.Quiet+w.o.Patience {
			w.tally.settled = max(w.tally.settled, cmp.Or(agreed, since))
			return d, nil
		}
		if err := cluster.Wait(ctx, lookEvery); err != nil {
			return d, err
		}
	}
}

// count adds the counters of a router before its kill or at the end. A process that does not answer
// adds nothing.
func (w *world) count(ctx context.Context, r *instance) {
	t := &w.tally
	_ = r.Do(ctx, cluster.Request{Method: http.MethodGet, Path: "/metrics"}, func(answer io.Reader) error {
		for lines := bufio.NewScanner(answer); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), " ")
			to := map[string]*uint64{
				"blockyard_router_replica_marks_forwarded_total": &t.forwarded, "blockyard_router_replica_restatements_total": &t.restatements,
				"blockyard_router_replica_messages_received_total": &t.messages, "blockyard_router_replica_messages_lost_total": &t.missed,
			}[name]
			if to == nil {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return fmt.Errorf("metric %s: %w", name, err)
			}
			*to += uint64(n)
		}
		return nil
	})
}
