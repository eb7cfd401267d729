package check

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

func loadCompose(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../compose/compose.yaml"}, cli.WithDiscardEnvFile)
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestComposeFileLoads: Compose's own loader, schema and consistency checks take the file, and
// the files and services that it names are there.
func TestComposeFileLoads(t *testing.T) {
	p := loadCompose(t)
	for _, name := range []string{"nats", "agent", "engine-1", "engine-2", "router", "prometheus", "grafana"} {
		if _, ok := p.Services[name]; !ok {
			t.Errorf("no service %s", name)
		}
	}
	for _, s := range p.Services {
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		if s.Build != nil {
			if _, err := os.Stat(filepath.Join(s.Build.Context, "Dockerfile")); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		for _, c := range s.CapAdd {
			t.Errorf("%s adds the capability %s", s.Name, c)
		}
	}
}

// TestComposeScrapesServicesThatAreThere: Prometheus asks ports of services of the file.
func TestComposeScrapesServicesThatAreThere(t *testing.T) {
	b, err := os.ReadFile("../compose/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		ScrapeConfigs []struct {
			StaticConfigs []struct{ Targets []string } `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range c.ScrapeConfigs {
		for _, t := range s.StaticConfigs {
			got = append(got, t.Targets...)
		}
	}
	if want := []string{"agent:9400", "router:8090"}; !slices.Equal(got, want) {
		t.Errorf("targets %q, want %q", got, want)
	}
}
