package command

import (
	"encoding/json"
	"fmt"
	"strings"
)

// agentOutputs are where an agent tells of ranks together with their pools.
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

// show writes the outputs; nothing when there are none and nothing went wrong.
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
	writeLines(b, "\nfor those who know workers only, what is not 0:", lines)
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

// numbers are those of an object's fields that are numbers, and 1 for those that
// are true.
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
