package console

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// TestDoctorFollowsAPrompt: doctor's canary goes through the front door to a stub of a vLLM server, whose
// events bring its blocks to the router, and a second time to the same stub with a hit. A model that no
// server of the door has is named.
func TestDoctorFollowsAPrompt(t *testing.T) {
	b := newBed(t)
	for model, want := range map[string]struct {
		status int
		text   string
	}{
		stubModel: {0, "nothing found"},
		simulated: {1, "The prompt was not answered. (canary-failed)"},
	} {
		out, err := exec.CommandContext(t.Context(), "../../bin/blockyard", "doctor", "--agent=none", "--timeout=60s",
			"--router="+b.router.URL, "--canary", "--door="+b.door.URL, "--canary-model="+model).CombinedOutput()
		var exit *exec.ExitError
		status := 0
		if errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != want.status || !strings.Contains(string(out), want.text) || !strings.Contains(string(out), "canary of "+model) {
			t.Errorf("model %s: status %d, want %d and %q:\n%s", model, status, want.status, want.text, out)
		}
	}
}
