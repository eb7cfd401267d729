package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mostExposed is the highest exposure that systemd-analyze security may find, of 10.
const mostExposed = "25" // in tenths: 2.5, which it calls OK

// TestUnitsAreValid: systemd takes every line of the units, and their sandbox is tight.
func TestUnitsAreValid(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze")
	}
	units, err := filepath.Glob("../systemd/*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("%d units, error %v", len(units), err)
	}
	for _, unit := range units {
		t.Run(filepath.Base(unit), func(t *testing.T) {
			b, err := os.ReadFile(unit)
			if err != nil {
				t.Fatal(err)
			}
			// The check wants the program to be there.
			b = bytes.ReplaceAll(b, []byte("/usr/bin/blockyard"), []byte("/bin/true"))
			copied := filepath.Join(t.TempDir(), filepath.Base(unit))
			if err := os.WriteFile(copied, b, 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(tool, "verify", "--man=no", copied).CombinedOutput()
			name := strings.TrimSuffix(filepath.Base(unit), ".service")
			if err != nil || strings.Contains(string(out), name) {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
			out, err = exec.Command(tool, "security", "--no-pager", "--offline=true", "--threshold="+mostExposed, copied).CombinedOutput()
			if err != nil {
				t.Errorf("systemd-analyze security: %v\n%s", err, out)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			t.Log(lines[len(lines)-1])
		})
	}
}
