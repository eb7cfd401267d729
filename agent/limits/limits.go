package limits

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// maxFile bounds the file in bytes.
const maxFile = 4 << 20

// Limits are those of a node. The zero value limits nobody.
type Limits struct {
	Models  map[string]blockmgr.Limit
	Tenants []blockmgr.Tenant
}

// document is the file as it is written.
type document struct {
	Models  map[string]share `yaml:"models"`
	Tenants map[string]struct {
		share  `yaml:",inline"`
		Models map[string]share `yaml:"models"`
		Salts  []string         `yaml:"salts"`
		TTL    time.Duration    `yaml:"ttl"`
	} `yaml:"tenants"`
}

type share struct {
	Host bytesize.Size `yaml:"host"`
	Disk bytesize.Size `yaml:"disk"`
}

// Load reads a file.
func Load(path string) (Limits, error) {
	in, err := os.Open(path)
	if err != nil {
		return Limits{}, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}
	var l Limits
	if err == nil {
		l, err = Parse(text)
	}
	if err != nil {
		return Limits{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// Parse reads the text of a file. An empty text limits nobody.
func Parse(text []byte) (Limits, error) {
	var d document
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return Limits{}, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Limits{}, errors.New("more than one document")
	}
	l := Limits{Models: limitsOf(d.Models)}
	for _, name := range slices.Sorted(maps.Keys(d.Tenants)) {
		s := d.Tenants[name]
		l.Tenants = append(l.Tenants, blockmgr.Tenant{
			Name: name, Salts: s.Salts, HostBytes: uint64(s.Host), DiskBytes: uint64(s.Disk), Models: limitsOf(s.Models), TTL: s.TTL,
		})
	}
	if err := tenant.CheckLimits(l.Models); err != nil {
		return Limits{}, err
	}
	return l, tenant.NewTable().Set(l.Tenants)
}

// limitsOf returns the limits of models.
func limitsOf(models map[string]share) map[string]blockmgr.Limit {
	limits := make(map[string]blockmgr.Limit, len(models))
	for name, s := range models {
		limits[name] = blockmgr.Limit{HostBytes: uint64(s.Host), DiskBytes: uint64(s.Disk)}
	}
	return limits
}
