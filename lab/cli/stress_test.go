package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/command"
)

func TestStressOfOneConfigurationEndsWithItsLine(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"bench", "stress", "--seconds", "0.01", "--seed", "5", "--config", "host-disk", "--dir", t.TempDir()}
	if status := New("").Run(t.Context(), args, &out, &errs); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "stress: ops=") || !strings.HasSuffix(last, " wrong_bytes=0") {
		t.Errorf("the report ends with %q", last)
	}
	if !strings.HasPrefix(lines[0], "stress: seed 5,") {
		t.Errorf("the report begins with %q", lines[0])
	}
}

func TestStressRefusesAnUnknownConfigurationAsUsage(t *testing.T) {
	var out, errs bytes.Buffer
	status := New("").Run(t.Context(), []string{"bench", "stress", "--config", "nonsense"}, &out, &errs)
	if status != command.ExitUsage || !strings.Contains(errs.String(), `configuration "nonsense": want one of host, `) {
		t.Errorf("status %d: %s", status, errs.String())
	}
}
