package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/golden"
)

// TestGoldenHelp: commands, flags, variables, defaults and their help stay.
func TestGoldenHelp(t *testing.T) {
	t.Setenv("COLUMNS", "100")
	for _, command := range []string{
		"", "demo", "bench", "sim-engine",
		"bench disk", "bench stress", "bench kill-loop", "bench events", "bench soak-events", "bench index", "bench soak-index", "bench index-log",
		"bench index-part", "bench copier", "bench event-consumer", "bench kill-loop-child",
	} {
		var out, errs bytes.Buffer
		if status := New("").Run(t.Context(), append(strings.Fields(command), "--help"), &out, &errs); status != 0 || errs.Len() > 0 {
			t.Fatalf("%s --help: status %d, %s", command, status, errs.String())
		}
		name := strings.ReplaceAll(strings.TrimSpace("blockyard-lab "+command), " ", "-")
		golden.Compare(t, "help/"+name+".txt", out.String())
	}
}
