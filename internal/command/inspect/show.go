package inspect

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// The parts of the answers that are shown. The counters of a rank stay raw, so that a
// new counter is shown too.
type (
	agentStats struct {
		Node    string
		Events  map[string]uint64
		Streams []struct {
			Owner       string
			PublisherID string `json:"publisher_id"`
			LastEventID uint64 `json:"last_event_id"`
			Digest      string
			Blocks      uint64
			Health      string
			Dropped     map[string]uint64
			Rank        map[string]json.RawMessage
		}
		Totals  map[string]map[string]json.RawMessage
		Outputs agentOutputs
	}
	agentFeeds struct {
		Clients, Frames, Bytes, Dropped, Refused, Cut uint64
		Feeds                                         []struct {
			PublisherID string `json:"publisher_id"`
			Owner       string
			KeptFrom    uint64 `json:"kept_from"`
			KeptTo      uint64 `json:"kept_to"`
			Counters    map[string]uint64
		}
	}
	routerFeed struct {
		PublisherID                                    string `json:"publisher_id"`
		Owner, Health                                  string
		Cursor, Announced, Gaps, Repaired, Divergences uint64
		DivergencesRepaired                            uint64 `json:"divergences_repaired"`
		DigestOK                                       bool   `json:"digest_ok"`
	}
	routerWorker struct {
		WorkerID                         uint64 `json:"worker_id"`
		DPRank                           uint32 `json:"dp_rank"`
		Pool                             uint64
		Model, Quality, Source, Endpoint string
		BlockSize                        uint32 `json:"block_size"`
		Silent                           bool
		Load                             *struct {
			Age     float64 `json:"age_seconds"`
			Total   uint64  `json:"device_blocks_total"`
			Used    uint64  `json:"device_blocks_used"`
			Running uint64  `json:"running_requests"`
			Waiting uint64  `json:"waiting_requests"`
		}
	}
	routerSource struct {
		Name             string
		Counters, Gauges map[string]uint64
	}
	routerAgent struct {
		URL                 string
		Connected           bool
		Publishers, Dropped uint64
		Error               string
	}
)

// table lines up rows whose cells are separated by tabs.
func table(b *strings.Builder, rows []string) {
	w := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, row)
	}
	_ = w.Flush() // a strings.Builder takes everything
}

// row returns one line of a table: the cells with tabs between them, and "-" for an empty cell.
func row(cells ...any) string {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = Printable(fmt.Sprint(c))
		if text[i] == "" {
			text[i] = "-"
		}
	}
	return strings.Join(text, "\t")
}

// Printable returns a foreign text that is safe on a terminal: characters that do not
// print are escaped.
func Printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// showAgent returns the report for people about the agent at url. seen has its answers by name:
// "stats", and "http" if the agent serves events over HTTP.
func showAgent(url string, seen map[string]json.RawMessage) (string, error) {
	var s agentStats
	if err := json.Unmarshal(seen["stats"], &s); err != nil {
		return "", fmt.Errorf("stats: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "agent of node %s at %s\n\n", Printable(s.Node), url)
	rows := []string{row("OWNER", "PUBLISHER", "HEALTH", "LAST EVENT", "BLOCKS", "DIGEST", "GAPS", "REPAIRED", "LOST", "BAD", "DROPPED")}
	var details []string
	for i := range s.Streams {
		o := &s.Streams[i]
		var dropped uint64
		for _, n := range o.Dropped {
			dropped += n
		}
		rows = append(rows, row(o.Owner, o.PublisherID, o.Health, o.LastEventID, o.Blocks, o.Digest,
			number(o.Rank, "gaps"), number(o.Rank, "repaired"), number(o.Rank, "lost"), number(o.Rank, "bad_events"), dropped))
		details = append(details, rankDetails(o.Owner, o.Dropped, o.Rank)...)
	}
	table(&b, rows)
	writeLines(&b, "\nby worker rank, counters that are not 0:", details)
	writeLines(&b, "\nsince the start, ended engines included, counters that are not 0:", totals(s.Events, s.Totals))
	s.Outputs.show(&b)
	if seen["http"] == nil {
		b.WriteString("\nthe agent serves no events over HTTP\n")
		return b.String(), nil
	}
	var f agentFeeds
	if err := json.Unmarshal(seen["http"], &f); err != nil {
		return "", fmt.Errorf("events over HTTP: %w", err)
	}
	fmt.Fprintf(&b, "\nover HTTP: %d clients, %d frames, %d bytes, %d dropped, %d clients refused, %d cut off\n",
		f.Clients, f.Frames, f.Bytes, f.Dropped, f.Refused, f.Cut)
	rows = []string{row("OWNER", "PUBLISHER", "KEPT", "COUNTERS")}
	for _, o := range f.Feeds {
		rows = append(rows, row(o.Owner, o.PublisherID, fmt.Sprintf("%d..%d", o.KeptFrom, o.KeptTo), counters(o.Counters)))
	}
	table(&b, rows)
	return b.String(), nil
}

// writeLines writes a heading and the lines below it, or nothing without lines.
func writeLines(b *strings.Builder, heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.WriteString(heading + "\n")
	for _, l := range lines {
		b.WriteString("  " + Printable(l) + "\n")
	}
}

// number returns a counter of a rank, or "-".
func number(rank map[string]json.RawMessage, key string) string {
	if v, ok := rank[key]; ok {
		return string(v)
	}
	return "-"
}

// rankDetails returns lines about a rank of a worker, each begun with owner: dropped blocks by
// reason, each entry of its lists, such as the last bad events, and counters that are not 0.
func rankDetails(owner string, dropped map[string]uint64, rank map[string]json.RawMessage) []string {
	var lines []string
	if text := counters(dropped); text != "" {
		lines = append(lines, owner+": dropped "+text)
	}
	for _, key := range slices.Sorted(maps.Keys(rank)) {
		var list []json.RawMessage
		if json.Unmarshal(rank[key], &list) == nil {
			for _, entry := range list {
				lines = append(lines, fmt.Sprintf("%s: %s %s", owner, key, entry))
			}
		}
	}
	if text := counters(numbers(rank)); text != "" {
		lines = append(lines, owner+": "+text)
	}
	return lines
}

// totals returns a line for each part of the event path with its counters that are not 0.
func totals(events map[string]uint64, parts map[string]map[string]json.RawMessage) []string {
	var lines []string
	if text := counters(events); text != "" {
		lines = append(lines, "events: "+text)
	}
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		if text := counters(numbers(parts[part])); text != "" {
			lines = append(lines, part+": "+text)
		}
	}
	return lines
}

// counters returns the numbers that are not 0, as "name 3, other 5" in the order of their names. It
// returns an empty text when all are 0.
func counters(numbers map[string]uint64) string {
	var text []string
	for _, key := range slices.Sorted(maps.Keys(numbers)) {
		if numbers[key] != 0 {
			text = append(text, fmt.Sprintf("%s %d", key, numbers[key]))
		}
	}
	return strings.Join(text, ", ")
}

// showRouter returns the report for people about the router at url. seen has its answers by name:
// "feeds", "workers", "agents" and "sources". A router without one of the paths lacks its answer.
func showRouter(url string, seen map[string]json.RawMessage) (string, error) {
	var feeds []routerFeed
	var workers []routerWorker
	var agents []routerAgent
	var sources []routerSource
	for name, into := range map[string]any{"feeds": &feeds, "workers": &workers, "agents": &agents, "sources": &sources} {
		if seen[name] == nil {
			continue
		}
		if err := json.Unmarshal(seen[name], into); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "router at %s\n\n", url)
	rows := []string{row("OWNER", "PUBLISHER", "HEALTH", "CURSOR", "ANNOUNCED", "GAPS", "REPAIRED", "DIVERGED", "REPAIRED", "DIGEST")}
	for _, f := range feeds {
		digest := "differs"
		if f.DigestOK {
			digest = "ok"
		}
		rows = append(rows, row(f.Owner, f.PublisherID, f.Health, f.Cursor, f.Announced, f.Gaps, f.Repaired,
			f.Divergences, f.DivergencesRepaired, digest))
	}
	table(&b, rows)
	b.WriteString("\n")
	rows = []string{row("WORKER", "SOURCE", "MODEL", "BLOCK", "QUALITY", "POOL", "EVENTS", "ENDPOINT", "DEVICE", "RUNNING", "WAITING", "AGE")}
	for i := range workers {
		rows = append(rows, workers[i].row())
	}
	table(&b, rows)
	if len(agents) > 0 {
		b.WriteString("\n")
		rows = []string{row("AGENT", "CONNECTED", "PUBLISHERS", "DROPPED", "ERROR")}
		for _, a := range agents {
			rows = append(rows, row(a.URL, a.Connected, a.Publishers, a.Dropped, a.Error))
		}
		table(&b, rows)
	}
	var details []string
	for _, s := range sources {
		for _, numbers := range []map[string]uint64{s.Gauges, s.Counters} {
			if text := counters(numbers); text != "" {
				details = append(details, s.Name+": "+text)
			}
		}
	}
	writeLines(&b, "\nby source, counters that are not 0:", details)
	return b.String(), nil
}

// row returns the worker's line of the table. The cells about load stay empty without a report.
func (w *routerWorker) row() string {
	events := "yes"
	if w.Silent {
		events = "no"
	}
	device, running, waiting, age := "", "", "", ""
	if l := w.Load; l != nil {
		device, running, waiting = fmt.Sprintf("%d/%d", l.Used, l.Total), fmt.Sprint(l.Running), fmt.Sprint(l.Waiting)
		age = fmt.Sprintf("%.1fs", l.Age)
	}
	return row(fmt.Sprintf("%d/%d", w.WorkerID, w.DPRank), w.Source, w.Model, w.BlockSize, w.Quality, w.Pool, events,
		w.Endpoint, device, running, waiting, age)
}

// agentOutputs are an agent's outputs that join a rank with its pool.
type agentOutputs struct {
	Dynamo, Tokens map[string]uint64
	ZMQFailed      uint64 `json:"zmq_failed"`
	Capped         uint64
	LoadsLost      uint64 `json:"loads_lost"`
	Ranks          []struct {
		Owner       string
		Blocks      uint64
		ZMQ, Dynamo map[string]json.RawMessage
	}
}

// show writes to b what the agent restates in foreign formats (vLLM's over ZMQ, Dynamo's): a
// table by rank, and counters that are not 0. It writes nothing when there is no such output and
// no failure.
func (o *agentOutputs) show(b *strings.Builder) {
	var lines []string
	for _, part := range []struct {
		name    string
		numbers map[string]uint64
	}{
		{"outputs", map[string]uint64{"zmq_failed": o.ZMQFailed, "capped": o.Capped, "loads_lost": o.LoadsLost}},
		{"dynamo_plane", o.Dynamo},
		{"tokens", o.Tokens},
	} {
		if text := counters(part.numbers); text != "" {
			lines = append(lines, part.name+": "+text)
		}
	}
	writeLines(b, "\noutputs by worker, counters that are not 0:", lines)
	rows := []string{row("OWNER", "OUTPUT", "BLOCKS", "COUNTERS")}
	for i := range o.Ranks {
		r := &o.Ranks[i]
		if r.ZMQ != nil {
			rows = append(rows, row(r.Owner, "zmq", r.Blocks, counters(numbers(r.ZMQ))))
		}
		if r.Dynamo != nil {
			rows = append(rows, row(r.Owner, "dynamo", r.Blocks, counters(numbers(r.Dynamo))))
		}
	}
	if len(rows) > 1 {
		fmt.Fprintln(b)
		table(b, rows)
	}
}

// numbers returns the fields of a JSON object that are whole numbers, and 1 for fields that are
// true. It leaves out other fields.
func numbers(fields map[string]json.RawMessage) map[string]uint64 {
	found := make(map[string]uint64, len(fields))
	for key, v := range fields {
		var n uint64
		var yes bool
		switch {
		case json.Unmarshal(v, &n) == nil:
			found[key] = n
		case json.Unmarshal(v, &yes) == nil && yes:
			found[key] = 1
		}
	}
	return found
}
