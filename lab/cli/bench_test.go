package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/command"
)

// runLab runs a command line that ends by itself.
func runLab(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = New("").Run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

// checkRefused runs command lines that must fail with a status and an error that contains a
// text.
func checkRefused(t *testing.T, want int, texts map[string]string) {
	t.Helper()
	for args, text := range texts {
		if status, _, stderr := runLab(t, strings.Fields(args)...); status != want || !strings.Contains(stderr, text) {
			t.Errorf("%s: status %d, standard error %q; want %d and %q", args, status, stderr, want, text)
		}
	}
}

// TestBadValuesAreErrorsOfUsage: each command refuses a value out of range before it starts
// anything, and names the flag and the value. A zero is a value and not a missing flag.
func TestBadValuesAreErrorsOfUsage(t *testing.T) {
	checkRefused(t, command.ExitUsage, map[string]string{
		"demo --block-size=0":                        "--block-size 0: want 1..4096",
		"demo --device-blocks=0":                     "--device-blocks 0: want ",
		"demo --requests=0":                          "--requests 0: want ",
		"demo --host-size=0":                         "--host-size 0: want ",
		"demo --disk-size=4096":                      "--disk-size 4096: want ",
		"demo --nodes=0":                             "--nodes 0: want 1..16",
		"demo --engines=1":                           "--engines 1: want 2..64",
		"demo --prefill-rate=0":                      "--prefill-rate 0: want ",
		"demo --speed-up=-1":                         "--speed-up -1: want 0.01..1000",
		"demo --drop-frames=-1":                      "--drop-frames -1: want 0..1000",
		"bench disk --seconds=0":                     "--seconds 0",
		"bench disk --seconds=NaN":                   "--seconds NaN",
		"bench disk --blocks=0":                      "--blocks 0",
		"bench disk --blocks=100":                    "blocks 100",
		"bench disk --round-size=0":                  "--round-size 0",
		"bench disk --round-size=4096":               "round size 4096",
		"bench disk --sizes=1MiB,1000":               "block size 1000",
		"bench disk --sizes=many":                    "many",
		"bench stress --config=nonsense":             `configuration "nonsense": want one of host, `,
		"bench kill-loop --kills=-1":                 "kills",
		"bench kill-loop --kills=0":                  "kills",
		"bench kill-loop --kills=10000000":           "kills",
		"bench soak-events --seconds=0":              "seconds",
		"bench soak-events --rounds=-1":              "rounds",
		"bench events --seconds=NaN":                 "seconds",
		"bench events --blocks=5":                    "blocks",
		"bench events --rate=1":                      "rate",
		"bench index --busy=0":                       "--busy 0",
		"bench index --rounds=0":                     "--rounds 0",
		"bench index --rounds=2":                     "rounds 2: want an odd number of 1 to 99",
		"bench index --decisions=0":                  "--decisions 0",
		"bench index --cpu=-2":                       "cpu -2",
		"bench index --engines=0":                    "--engines 0",
		"bench index --affinity=2":                   "affinity 2",
		"bench index-log /l --chunk=0":               "--chunk 0",
		"bench index-log /l --order=x":               "--order",
		"bench soak-index --seconds=0":               "--seconds 0",
		"bench front-idle --connections=0":           "--connections 0",
		"bench front-idle --connections=20000":       "connections 20000",
		"bench front-idle --wait=-1":                 "wait -1s",
		"bench soak-index --rate=0":                  "--rate 0",
		"bench soak-index --workers=1":               "workers 1",
		"bench soak-index --pool=3":                  "pool 3",
		"sim-engine --worker-id=1 --device-blocks=0": "--device-blocks 0: want 1 to 16777216",
		"sim-engine --worker-id=1 --step-base=0s":    "--step-base 0: want more than 0s, at most 1m0s",
		"sim-engine --worker-id=1 --lookup-wait=0s":  "--lookup-wait 0: want more than 0s, at most 1m0s, or less for no wait",
		"sim-engine --worker-id=1 --max-num-seqs=0":  "--max-num-seqs 0: want 1 to 65536",
		"sim-engine --worker-id=1 --speed-up=0":      "--speed-up 0: want more than 0",
		"sim-engine --worker-id=1 --no-such-flag":    "--no-such-flag",
	})
}

// TestRunsThatCannotStartSayWhy: a file that is not there, or an engine that cannot be, ends a
// run before it starts anything, and the error names the flag or the field.
func TestRunsThatCannotStartSayWhy(t *testing.T) {
	checkRefused(t, command.ExitFailed, map[string]string{
		"demo --trace=/nowhere/x.jsonl":             "blockyard: --trace: open /nowhere/x.jsonl: ",
		"demo --report=/proc/nowhere/r.json":        "--report: open /proc/nowhere/r.json: ",
		"demo --dir=/proc/nowhere":                  "--dir: ",
		"bench events --dir=/nowhere":               "dir",
		"bench soak-events --dir=/nowhere":          "dir",
		"bench soak-events --nats-server=/nowhere":  "nats",
		"bench kill-loop --dir=/nowhere":            "dir",
		"bench kill-loop --host-dir=/nowhere":       "host-dir",
		"sim-engine --worker-id=1 --speed-up=-1":    "speed-up: -1",
		"sim-engine --worker-id=1 --block-size=0":   "page_size",
		"sim-engine --worker-id=0":                  "worker id",
		"sim-engine --worker-id=1 --drop-frames=-1": "drop frames: -1",
		"sim-engine --worker-id=1 --events=nowhere": "event publisher: bind nowhere",
	})
}

// leftovers returns the files in a directory.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// asProgram makes child processes that run this binary run the program.
func asProgram(t *testing.T) (exe string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Setenv(mainVariable, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // under the race detector a process lingers for a second by default
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}
