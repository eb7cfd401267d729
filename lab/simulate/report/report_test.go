package report

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// TestReportNamesWhatIsBetter: the verdict counts goodput and latencies, and the last line is as
// documented.
func TestReportNamesWhatIsBetter(t *testing.T) {
	row := func(name string, ttft, tbt, good float64) Row {
		r := Result{TTFTMean: ttft, TTFTP99: 2 * ttft, TBTMean: tbt, TBTP99: 2 * tbt, Goodput: good, TokensPerSecond: 100 * good, Herd: 1.25}
		return Row{name, r, []Result{r}}
	}
	tables := []Table{
		{Scenario: "a", Equal: true, Rows: []Row{row("llm-d", 10, 30, 10.1), row("price", 20, 20, 10), row("oracle", 1, 1, 20)}},
		{Scenario: "b", Rows: []Row{row("llm-d", 10, 10, 10), row("price", 20, 20, 10)}},
		{Scenario: "c", Rows: []Row{row("llm-d", 10, 30, 10.3), row("price", 20, 20, 10)}},
	}
	if got, want := Judge(tables).String(), "simulate: scenarios=3 best_or_within_2pct=1 oracle_share=0.500 worst_herd=1.25 default_policy_of_optimum=not_measured"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if v := strings.Join(tables[1].verdict(), " "); v != "llm-d is better in all four latencies" {
		t.Error(v)
	}
	moved := &tables[0].Rows[1].Mean
	moved.Served, moved.Moved = Served{Device: 31, Host: 17, Disk: 2, Computed: 50}, engine.Moved{HostToDevice: 7.3e9, DiskRead: 2.1e9, DiskWritten: 4.6e9, Network: 1.2e9}
	if b := string(Page(tables)); !strings.Contains(b, "<svg") || !strings.Contains(b, "<td>50 %<td>31<td>17<td>2<td>1.25<td>0.00<td>7.3<td>2.1<td>4.6<td>1.2</tr>") {
		t.Errorf("the page has no plot, or not the tokens by tier and the bytes: %s", b)
	}
}

// TestDecisionsArePrinted: the table has them when asked to, the page and the JSON always.
func TestDecisionsArePrinted(t *testing.T) {
	chosen := schedule.Candidate{Worker: kv.Worker{ID: 3}, Cost: 130, TaintFactor: 1, Mode: schedule.ModePrice, Price: price.Price{Wait: 1, TTFT: 20, Decode: 100, Imposed: 5, Cached: 640}}
	other := schedule.Candidate{Worker: kv.Worker{ID: 4}, Cost: 90, TaintFactor: 1, Mode: schedule.ModePrice, Price: price.Price{TTFT: 30, Decode: 50, Imposed: 10}}
	d := DecisionOf(&decisions.Decision{Request: "s1<t0", Tokens: 900, Mode: schedule.ModePrice, Compared: 2, Chosen: chosen, Others: []schedule.Candidate{other}}, 12_345)
	r := Result{Goodput: 1, Decisions: []Decision{d}}
	table := Table{Scenario: "a", Rows: []Row{{"price", Mean([]Result{r}), []Result{r}}}}
	want := "  s1<t0 at 12.3 s: 900 prompt tokens, 2 workers compared by price\n" +
		"     Formula for worker_4: 90.0 = price of 30.0 ms to the first token with 0.0 ms of waiting, 50.0 ms of answer, 10.0 ms imposed on others (cached_blocks: 0)\n" +
		"  -> Formula for worker_3: 130.0 = price of 20.0 ms to the first token with 1.0 ms of waiting, 100.0 ms of answer, 5.0 ms imposed on others (cached_blocks: 0)\n"
	for _, explain := range []bool{false, true} {
		var out strings.Builder
		table.Print(&out, explain)
		if strings.Contains(out.String(), want) != explain {
			t.Errorf("explain %v: %s", explain, out.String())
		}
	}
	if page := string(Page([]Table{table})); !strings.Contains(page, `<tr class="price"><td>s1&lt;t0<td>3<td>130<td>1<td>20<td>100<td>5<td>640<td>0</tr>`) {
		t.Errorf("the page lacks the decision: %s", page)
	}
	b, err := json.Marshal(&table.Rows[0].Seeds[0])
	if err != nil || !strings.Contains(string(b), `"worker":3,"chosen":true,"cost_ms":130,"wait_ms":1,"ttft_ms":20,"decode_ms":100,"imposed_ms":5,`) {
		t.Errorf("%v: %s", err, b)
	}
}
