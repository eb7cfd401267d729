package index

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// printSetting prints the line that says where and how the parts are measured.
func (o *Options) printSetting() error {
	where := "wherever the kernel puts it"
	if o.CPU != Unpinned {
		where = fmt.Sprintf("on processor %d, its collector included", o.CPU)
	}
	setting := func(name, fallback string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return fallback
	}
	_, err := fmt.Fprintf(o.Out, "%d processors; each part a process, one without a second goroutine %s; medians of %d rounds; GOGC=%s GOMEMLIMIT=%s\n",
		runtime.NumCPU(), where, o.Rounds, setting("GOGC", "100"), setting("GOMEMLIMIT", "off"))
	return err
}

// row is the format of the table's heading and rows.
const row = "%-16s %11s %10s %8s %8s %10s %10s %8s %8s %10s %11s\n"

// printLog prints the row of the log at path with the figures r, and below it those of the
// garbage collector. The first log gets the heading of the table.
func (o *Options) printLog(first bool, path string, r results) error {
	var b strings.Builder
	if first {
		fmt.Fprintf(&b, row, "log", "events M/s", "mixed M/s", "p50 us", "p99 us", "final p50", "final p99", "busy p50", "busy p99", "visible ms", "bytes/pair")
	}
	l, y, v := r[PartLookups], r[PartBusy], r[PartVisible]
	fmt.Fprintf(&b, row, strings.TrimSuffix(filepath.Base(path), ".log"),
		down(r[PartEvents][figMops]), down(r[PartMixed][figMops]), up(l[figP50]), up(l[figP99]), up(l["final_"+figP50]), up(l["final_"+figP99]),
		up(y[figP50]), up(y[figP99]), up4(v[figP99]/1e3), up(r[PartMemory][figBytes]))
	for _, p := range logParts() {
		f := r[p]
		switch {
		case p == PartMemory:
			fmt.Fprintf(&b, "  %-8s %.0f pairs; %.1f bytes each before garbage is collected and given back\n", p, f[figPairs], f[figBytesUsed])
			continue
		case p.concurrent():
			fmt.Fprintf(&b, "  %-8s %.0f times; most %.1f us; beside %.1f M blocks/s; ", p, f[figN], f[figMost], f[figMops])
		case p.repeated():
			fmt.Fprintf(&b, "  %-8s %.3f s, and %.1f M/s by processor time; ", p, f[figSeconds], f[figMops]*f[figSeconds]/f[figCPU])
		default:
			fmt.Fprintf(&b, "  %-8s %.3f s; ", p, f[figSeconds])
		}
		b.WriteString(f.collector())
	}
	_, err := fmt.Fprint(o.Out, b.String())
	return err
}

// printDecisions prints the figures of the two parts without a log: a decision for a long prompt,
// and a choice among many workers.
func (o *Options) printDecisions(r results) error {
	d, c := r[PartScore], r[PartSelect]
	_, err := fmt.Fprintf(o.Out, "a prompt of %d blocks that %d workers hold and run: decision %s ms (match %s), p99 %s; %s MB allocated; hashing its tokens before that %s ms\n  %s"+
		"a choice among %d workers with loads: %s us with no hits, %s with hits on %d, %s with hits on all, %s with hits on %d, booked and freed; %s MB allocated\n  %s",
		scoreBlocks, scoreWorkers, up4(d[figDecisionMs]), up4(d[figMatchMs]), up4(d[figP99]/1e3), up4(d[figDecisionMB]), up4(d[figHashMs]), d.collector(),
		selectWorkers, up(c[figNoHits]), up(c[figSomeHits]), selectHits, up(c[figAllHits]), up(c[figBooked]), selectHits, up4(c[figDecisionMB]), c.collector())
	return err
}

// collector describes the garbage collection of a part.
func (f Figures) collector() string {
	return fmt.Sprintf("processor time %.3f s; %.0f collections, pauses p99 %.0f us, most %.0f us; %.1f MB allocated, %.1f MB live\n",
		f[figCPU], f[figGCs], f[figPause99], f[figPause], f[figAlloc], f[figHeap])
}

// down rounds a figure down that is better when high. up rounds one up that is better
// when low. No target is met by rounding.
func down(v float64) string { return fmt.Sprintf("%.2f", math.Floor(100*v)/100) }

func up(v float64) string { return fmt.Sprintf("%.2f", math.Ceil(100*v)/100) }

func up4(v float64) string { return fmt.Sprintf("%.4f", math.Ceil(10000*v)/10000) }

// lastLine returns the line for scripts, about one log and the decisions.
func lastLine(r, decisions results) string {
	return fmt.Sprintf("bench-index: events_mops=%s mixed_mops=%s lookup_p50_us=%s lookup_p99_us=%s busy_p50_us=%s busy_p99_us=%s"+
		" visible_p99_ms=%s bytes_per_membership=%s score240k_ms=%s score240k_mb=%s select10k_us=%s",
		down(r[PartEvents][figMops]), down(r[PartMixed][figMops]), up(r[PartLookups][figP50]), up(r[PartLookups][figP99]),
		up(r[PartBusy][figP50]), up(r[PartBusy][figP99]), up4(r[PartVisible][figP99]/1e3), up(r[PartMemory][figBytes]),
		up4(decisions[PartScore][figDecisionMs]), up4(decisions[PartScore][figDecisionMB]), up(decisions[PartSelect][figP50]))
}
