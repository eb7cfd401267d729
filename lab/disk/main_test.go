package disk

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// copierVariable makes this test binary a copier.
const copierVariable = "BLOCKYARD_TEST_COPIER"

func TestMain(m *testing.M) {
	if os.Getenv(copierVariable) != "" {
		if err := ServeCopies(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testOptions returns those of a run of seconds, in fresh directories.
func testOptions(t *testing.T) Options {
	t.Helper()
	t.Setenv(copierVariable, "1")
	return Options{
		Dir: t.TempDir(), HostDir: t.TempDir(), Duration: 1, Sizes: []uint64{64 << 10, 256 << 10}, RoundBytes: 2 << 20,
		Blocks: 4_000, Copier: []string{os.Args[0]}, Out: t.Output(), noFio: true,
	}
}
