package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// parse has the built blockyard read a command line and variables as a start would, with "config
// print". settings replaces the file of --router-config.
func parse(t *testing.T, where string, args, environ []string, settings string) {
	t.Helper()
	bin := os.Getenv("BLOCKYARD_BIN")
	if bin == "" {
		t.Skip("BLOCKYARD_BIN is not set")
	}
	args = slices.Clone(args)
	for i, a := range args {
		if strings.HasPrefix(a, "--router-config=") {
			file := filepath.Join(t.TempDir(), "router.json")
			if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
				t.Fatal(err)
			}
			args[i] = "--router-config=" + file
		}
	}
	cmd := exec.Command(filepath.Join(bin, "blockyard"), append([]string{"config", "print"}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, environ...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %q: %v\n%s", where, args, err, out)
	}
}

// parseContainers parses the arguments of each container that runs blockyard, and returns how many
// there are.
func parseContainers(t *testing.T, objects []any) (n int) {
	t.Helper()
	settings := "{}"
	for _, o := range objects {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Data["router.json"] != "" {
			settings = m.Data["router.json"]
		}
	}
	for _, w := range workloads(objects) {
		for _, c := range append(w.pod.Spec.Containers, w.pod.Spec.InitContainers...) {
			if len(c.Args) == 0 || c.Args[0] != "agent" && c.Args[0] != "router" {
				continue
			}
			var environ []string
			for _, e := range c.Env {
				environ = append(environ, e.Name+"="+e.Value)
			}
			parse(t, w.name, c.Args, environ, settings)
			n++
		}
	}
	return n
}

// TestChartsArgumentsAreTaken: blockyard takes the flags, settings and variables of every container.
func TestChartsArgumentsAreTaken(t *testing.T) {
	for file, want := range map[string]int{"agents": 1, "everything": 2, "existing-nats": 2, "router": 1, "": 2} {
		if file != "" {
			file = filepath.Join(chartDir, "ci", file+".yaml")
		}
		t.Run(caseName(file), func(t *testing.T) {
			if n := parseContainers(t, renderObjects(t, values(t, file))); n != want {
				t.Errorf("%d containers run blockyard, want %d", n, want)
			}
		})
	}
	sidecar, err := os.ReadFile("../kubernetes/sidecar.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeAll(sidecar)
	if n := parseContainers(t, objects); err != nil || n != 1 {
		t.Errorf("the sidecar: %d containers, error %v", n, err)
	}
}

// TestComposeArgumentsAreTaken is the same for the Compose file, with the image's own file.
func TestComposeArgumentsAreTaken(t *testing.T) {
	for _, name := range []string{"agent", "router"} {
		s := loadCompose(t).Services[name]
		parse(t, name, s.Command, []string{"BLOCKYARD_CONFIG=../image/blockyard.yaml"}, "")
	}
}

// TestUnitsVariablesAreTaken is the same for the units and their files of variables, those that are
// commented out included.
func TestUnitsVariablesAreTaken(t *testing.T) {
	for _, name := range []string{"agent", "router"} {
		var environ []string
		for _, file := range []string{name + ".env", "blockyard-" + name + ".service"} {
			b, err := os.ReadFile(filepath.Join("../systemd", file))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(b)) {
				line = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "# "), "Environment=")
				if strings.HasPrefix(line, "BLOCKYARD_") && !strings.HasSuffix(line, "=") {
					environ = append(environ, line)
				}
			}
		}
		if len(environ) < 2 {
			t.Errorf("%s: variables %q", name, environ)
		}
		parse(t, name, []string{name}, environ, "")
	}
}
