package command

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

func TestAgentThatIsToldToStopWhileItStartsSucceeds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	var stdout, stderr strings.Builder
	status := Product("").Run(ctx, []string{"agent",
		"--socket=" + filepath.Join(dir, "agent.sock"), "--host-dir=" + filepath.Join(dir, "host"), "--host-size=1MiB",
	}, &stdout, &stderr)
	if status != 0 || stdout.String() != "" {
		t.Errorf("status %d, standard output %q, standard error %q; want 0 and no ready line", status, stdout.String(), stderr.String())
	}
}

func TestAgentNamesABadSizeOrServer(t *testing.T) {
	dir := t.TempDir()
	for flag, want := range map[string]string{
		"--extent-size=2GiB":           "extent size 2GiB",
		"--host-size=1":                "host size 1",
		"--nats=redis://user:secret@a": "want nats:// or tls://",
	} {
		var stdout, stderr strings.Builder
		status := Product("").Run(t.Context(), []string{"agent",
			"--socket=" + filepath.Join(dir, "agent.sock"), "--host-dir=" + filepath.Join(dir, "host"), "--host-size=1MiB", flag,
		}, &stdout, &stderr)
		if status == 0 || !strings.Contains(stderr.String(), want) || strings.Contains(stderr.String(), "secret") {
			t.Errorf("%s: status %d, standard error %q; want %q", flag, status, stderr.String(), want)
		}
	}
}

// TestSettingThatCannotTakeEffectEndsTheStart: a login without a server, and a socket
// whose place depends on where the agent was started.
func TestSettingThatCannotTakeEffectEndsTheStart(t *testing.T) {
	t.Setenv("NATS_SERVER", "")
	socket := filepath.Join(t.TempDir(), "agent.sock")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"agent", "--socket=" + socket, "--nats-user=u", "--nats-password=p"}, "--nats-user: has no effect without --nats"},
		{[]string{"agent", "--socket=" + socket, "--embedded-nats=127.0.0.1:0", "--nats-creds=/x"}, "--nats-creds: has no effect without --nats"},
		{[]string{"router", "--agents=http://127.0.0.1:1", "--nats-token=t"}, "--nats-token: has no effect without --nats"},
		{[]string{"agent", "--socket=agent.sock"}, `socket path "agent.sock": must be absolute`},
	} {
		var stdout, stderr strings.Builder
		if status := Product("").Run(t.Context(), c.args, &stdout, &stderr); status == 0 || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: status %d, standard error %q; want %q", c.args, status, stderr.String(), c.want)
		}
	}
}
