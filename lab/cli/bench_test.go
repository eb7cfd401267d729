package cli

import (
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/command"
)

func TestBenchDiskRefusesBadValuesAsErrorsOfUsage(t *testing.T) {
	for flag, want := range map[string]string{
		"--seconds=0":       "--seconds 0",
		"--seconds=NaN":     "--seconds NaN",
		"--blocks=0":        "--blocks 0",
		"--round-size=0":    "--round-size 0",
		"--round-size=2GiB": "round size 2147483648",
		"--sizes=1MiB,1000": "block size 1000",
		"--sizes=many":      "many",
	} {
		var stdout, stderr strings.Builder
		status := New("").Run(t.Context(), []string{"bench", "disk", "--dir=" + t.TempDir(), flag}, &stdout, &stderr)
		if status != command.ExitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, standard error %q; want %d and %q", flag, status, stderr.String(), command.ExitUsage, want)
		}
	}
}

func TestBenchHelpShowsItsDefaultsAndHidesTheCopier(t *testing.T) {
	var stdout, stderr strings.Builder
	if status := New("").Run(t.Context(), []string{"bench", "disk", "--help"}, &stdout, &stderr); status != 0 {
		t.Fatalf("status %d, standard error %q", status, stderr.String())
	}
	for _, want := range []string{"1MiB,2MiB,5MiB,8MiB", "512MiB", "10000000", "/dev/shm"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the help does not mention %s:\n%s", want, stdout.String())
		}
	}
	stdout.Reset()
	if status := New("").Run(t.Context(), []string{"bench", "--help"}, &stdout, &stderr); status != 0 || strings.Contains(stdout.String(), "copier") {
		t.Errorf("status %d, help:\n%s", status, stdout.String())
	}
}
