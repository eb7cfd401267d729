package admin

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
)

// poolStatus is one pool in the answer to GET /v1/status of an agent.
type poolStatus struct {
	Namespace, Model string
	Tiers            map[string]struct{ Active, Inactive, Empty int }
}

// showPools returns the status of an agent as a table.
func showPools(answer json.RawMessage) (string, error) {
	var pools []poolStatus
	if err := json.Unmarshal(answer, &pools); err != nil {
		return "", err
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tMODEL\tTIER\tIN USE\tNOT IN USE\tFREE")
	for _, p := range pools {
		for _, name := range []string{"host", "disk"} {
			if t, ok := p.Tiers[name]; ok {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", inspect.Printable(p.Namespace), inspect.Printable(p.Model), name, t.Active, t.Inactive, t.Empty)
			}
		}
	}
	err := w.Flush()
	return b.String(), err
}

// showServers returns the worker servers of a router as a table, or the workers of a router without
// worker servers.
func showServers(answer json.RawMessage) (string, error) {
	var servers []struct {
		WorkerID                                      uint64 `json:"worker_id"`
		URL, Endpoint, State, Problem, Quality, Model string
		Requests                                      int
	}
	if err := json.Unmarshal(answer, &servers); err != nil {
		return "", err
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "WORKER\tSTATE\tREQUESTS\tMODEL\tADDRESS\tPROBLEM")
	for _, s := range servers {
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%s\n", s.WorkerID, inspect.Printable(s.State+s.Quality), s.Requests,
			inspect.Printable(s.Model), inspect.Printable(s.URL+s.Endpoint), inspect.Printable(s.Problem))
	}
	err := w.Flush()
	return b.String(), err
}
