package report

import (
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
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
