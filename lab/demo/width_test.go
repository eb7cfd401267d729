package demo

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// terminalWidth is that of a terminal nobody has made wider.
const terminalWidth = 80

var escape = regexp.MustCompile("\x1b\\[[0-9;]*[mK]")

func wantNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(escape.ReplaceAllString(text, "")) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > terminalWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestWhatTheDemoPrintsFitsATerminal: a wrapped line of progress cannot be overwritten
// in place, and a wrapped table cannot be read.
func TestWhatTheDemoPrintsFitsATerminal(t *testing.T) {
	big := RunReport{
		Requests: 99999, InputTokens: 999_999_999, Served: Served{Device: 999_999_999, Host: 99_999_999, Disk: 99_999_999, Recomputed: 999_999_999},
		BlocksVerified: 9_999_999, Events: EventCounts{In: 99_999_999, Out: 99_999_999, Gaps: 99999, Repaired: 99999}, Compared: 99_999_999,
		TTFT: TTFT{Mean: 99999.9, P50: 99999.9, P99: 999999.9}, Routing: Routing{P50: 99999, P99: 999999},
	}
	for _, color := range []bool{false, true} {
		r := Report{RunReport: big, RoundRobin: &big, NoOffload: &big, Passed: true, Notes: []string{"ours: the trace never needed the device tier"}}
		wantNarrow(t, renderReport(&r, color))
		r.Passed, r.Reasons = false, make([]string, 100)
		wantNarrow(t, renderReport(&r, color))
		wantNarrow(t, renderChecks([]check{{what: "wrong bytes that the engine found", got: 1_000_000}}, color))
	}
	wantNarrow(t, progressLine(progress{
		finished: 99999, total: 99999, failed: 999, served: Served{Device: 999_999, Host: 1, Disk: 1, Recomputed: 1},
	}, 9999*time.Second))
	if line := progressLine(progress{finished: 99999, total: 99999, served: Served{Device: 1}}, 9999*time.Second); utf8.RuneCountInString(line) >= terminalWidth {
		t.Errorf("progress of %d columns leaves no room for the cursor: %s", utf8.RuneCountInString(line), line)
	}
}
