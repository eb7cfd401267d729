package report

import (
	"fmt"
	"html"
	"io"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Decision is a decision with the price of each compared worker, as the production router explains it.
type Decision struct {
	Request string  `json:"request"`
	AtMS    float64 `json:"at_ms"`
	Tokens  int     `json:"prompt_tokens"`
	Mode    string  `json:"mode"`
	// Compared counts the compared workers. Candidates has at most decisions.MaxCandidates of them, by
	// ascending cost.
	Compared   int         `json:"compared"`
	Candidates []Candidate `json:"candidates"`
}

// Candidate is a compared worker. Times are in milliseconds.
type Candidate struct {
	Worker    kv.WorkerID `json:"worker"`
	Chosen    bool        `json:"chosen"`
	Cost      float64     `json:"cost_ms"`
	WaitMS    float64     `json:"wait_ms"`
	TTFTMS    float64     `json:"ttft_ms"`
	DecodeMS  float64     `json:"decode_ms"`
	ImposedMS float64     `json:"imposed_ms"`
	MachineMS float64     `json:"machine_ms"`
	Doubt     float64     `json:"doubt"`
	Cached    float64     `json:"cached_tokens"`
	Requests  int32       `json:"requests"`
	// Formula is the production router's line for its log.
	Formula string `json:"formula"`
}

// DecisionOf returns a decision of the production log, made at atMS milliseconds.
func DecisionOf(d *decisions.Decision, atMS float64) Decision {
	out := Decision{Request: d.Request, AtMS: atMS, Tokens: d.Tokens, Mode: d.Mode, Compared: d.Compared}
	out.Candidates = append(out.Candidates, candidateOf(&d.Chosen, true))
	for i := range d.Others {
		out.Candidates = append(out.Candidates, candidateOf(&d.Others[i], false))
	}
	slices.SortStableFunc(out.Candidates, func(a, b Candidate) int {
		switch {
		case a.Cost < b.Cost:
			return -1
		case a.Cost > b.Cost:
			return 1
		}
		return 0
	})
	return out
}

func candidateOf(c *schedule.Candidate, chosen bool) Candidate {
	p := &c.Price
	return Candidate{Worker: c.Worker.ID, Chosen: chosen, Cost: c.Cost, WaitMS: p.Wait, TTFTMS: p.TTFT, DecodeMS: p.Decode, ImposedMS: p.Imposed,
		MachineMS: p.Machine, Doubt: p.Doubt, Cached: p.Cached, Requests: c.Requests, Formula: c.Formula()}
}

// decisions returns the sample of the first seed.
func (r *Row) decisions() []Decision {
	if len(r.Seeds) == 0 {
		return nil
	}
	return r.Seeds[0].Decisions
}

// printDecisions writes the sample of decisions for a terminal. The chosen worker has an arrow.
func (r *Row) printDecisions(out io.Writer) {
	for _, d := range r.decisions() {
		fmt.Fprintf(out, "  %s at %.1f s: %d prompt tokens, %d workers compared by %s\n", d.Request, d.AtMS/1e3, d.Tokens, d.Compared, d.Mode)
		for _, c := range d.Candidates {
			mark := "  "
			if c.Chosen {
				mark = "->"
			}
			fmt.Fprintf(out, "  %s %s\n", mark, c.Formula)
		}
	}
}

// pageDecisions writes the sample of decisions for the page.
func (r *Row) pageDecisions(out io.Writer) {
	all := r.decisions()
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(out, "<details><summary>%d decisions of price</summary><table><tr><th>request<th>worker<th>cost ms<th>wait<th>TTFT<th>decode<th>imposed<th>cached tokens<th>requests</tr>\n", len(all))
	for _, d := range all {
		for _, c := range d.Candidates {
			class := ""
			if c.Chosen {
				class = ` class="price"`
			}
			fmt.Fprintf(out, "<tr%s><td>%s<td>%d<td>%.0f<td>%.0f<td>%.0f<td>%.0f<td>%.0f<td>%.0f<td>%d</tr>\n", class, html.EscapeString(d.Request),
				c.Worker, c.Cost, c.WaitMS, c.TTFTMS, c.DecodeMS, c.ImposedMS, c.Cached, c.Requests)
		}
	}
	fmt.Fprintln(out, "</table></details>")
}
