package completion_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/command/completion"
)

type root struct {
	Run struct {
		Mode   string `enum:"fast,slow" default:"fast" help:"It's a mode."`
		Modest bool   `help:"Less."`
		Secret bool   `hidden:""`
	} `cmd:"" help:"Run."`
	Show struct {
		All struct {
			JSON bool `name:"json"`
		} `cmd:""`
	} `cmd:""`
	Lost struct{} `cmd:"" hidden:""`
}

func model(t *testing.T) *kong.Application {
	t.Helper()
	k, err := kong.New(new(root), kong.Name("tool"))
	if err != nil {
		t.Fatal(err)
	}
	return k.Model
}

// TestBashCompletes asks a real bash.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	script := filepath.Join(t.TempDir(), "tool.bash")
	if err := os.WriteFile(script, []byte(completion.Script(model(t), "bash")), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"tool ":                  "run show --help",
		"tool r":                 "run",
		"tool run --mod":         "--mode --modest",
		"tool run --mode ":       "fast slow",
		"tool run --mode = s":    "slow",
		"tool show ":             "all --help",
		"tool show all --js":     "--json",
		"tool run --modest --mo": "--mode --modest",
	} {
		words := strings.Split(line, " ")
		call := `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tool; echo "${COMPREPLY[*]}"`
		out, err := exec.Command(bash, append([]string{"-c", call, script}, words...)...).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q: %q, error %v, want %q", line, got, err, want)
		}
	}
}

func TestScriptsOfOtherShellsHaveTheWords(t *testing.T) {
	for _, shell := range []string{"zsh", "fish"} {
		text := completion.Script(model(t), shell)
		for _, want := range []string{"run", "show", "mode", "fast slow"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q", shell, want)
			}
		}
		for _, hidden := range []string{"secret", "lost"} {
			if strings.Contains(text, hidden) {
				t.Errorf("%s: %q is hidden", shell, hidden)
			}
		}
	}
	if text := completion.Script(model(t), "fish"); !strings.Contains(text, `'It\'s a mode.'`) {
		t.Errorf("fish: the help is not quoted:\n%s", text)
	}
}
