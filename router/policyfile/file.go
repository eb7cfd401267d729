package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// maxFile bounds the file in bytes, maxModels its profiles of models.
const (
	maxFile   = 1 << 20
	maxModels = 1024
)

// File is a policy file. The zero File has no profile.
type File struct {
	root   *queue.Profile
	models map[string]*queue.Profile
}

// Load reads a file. The error names the field that is out of range.
func Load(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}
	var f *File
	if err == nil {
		f, err = Parse(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Profile returns the profile of a model, nil if the file has neither one of the model nor its own.
func (f *File) Profile(model string) *queue.Profile {
	if p := f.models[model]; p != nil {
		return p
	}
	return f.root
}

// document is the file as it is written.
type document struct {
	profile `yaml:",inline"`
	Models  map[string]profile `yaml:"models"`
}

type profile struct {
	DefaultFamily string   `yaml:"default_policy_family"`
	Buckets       []bucket `yaml:"uncached_isl_buckets"`
	Classes       []class  `yaml:"policy_classes"`
	// Selection is of Dynamo and not supported.
	Selection yaml.Node `yaml:"worker_selection"`
}

type bucket struct {
	MinTokens int    `yaml:"min_tokens"`
	Bucket    string `yaml:"bucket"`
}

type class struct {
	Name              string    `yaml:"name"`
	Family            string    `yaml:"policy_family"`
	Bucket            string    `yaml:"cache_bucket"`
	Policy            string    `yaml:"queue_policy"`
	DeadlineMS        int       `yaml:"deadline_ms"`
	Quantum           int       `yaml:"quantum"`
	Threshold         *int64    `yaml:"prefill_busy_threshold"`
	ThresholdFraction *float64  `yaml:"prefill_busy_threshold_frac"`
	RequestLimit      int       `yaml:"request_queue_limit_per_worker"`
	TokenLimit        int       `yaml:"raw_isl_token_queue_limit_per_worker"`
	CachedTokenLimit  int       `yaml:"cached_token_queue_limit_per_worker"`
	Admission         yaml.Node `yaml:"queue_admission"`
}

// Parse reads the text of a file.
func Parse(text []byte) (*File, error) {
	var d document
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	if n := len(d.Models); n > maxModels {
		return nil, fmt.Errorf("models: %d, want at most %d", n, maxModels)
	}
	f := &File{models: make(map[string]*queue.Profile)}
	var err error
	if len(d.Classes) > 0 || len(d.Models) == 0 || d.DefaultFamily != "" || len(d.Buckets) > 0 || !d.Selection.IsZero() {
		if f.root, err = d.build(); err != nil {
			return nil, err
		}
	}
	for _, model := range slices.Sorted(maps.Keys(d.Models)) {
		p := d.Models[model]
		if f.models[model], err = p.build(); err != nil {
			return nil, fmt.Errorf("models: %q: %w", model, err)
		}
	}
	return f, nil
}

// name is a name of a class, family or bucket. It is safe in metrics and headers.
var name = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// build returns the profile for the scheduler.
func (p *profile) build() (*queue.Profile, error) {
	if !p.Selection.IsZero() {
		return nil, errors.New("worker_selection: not yet: router_mode and score choose the worker")
	}
	out := &queue.Profile{DefaultFamily: p.DefaultFamily}
	for _, b := range p.Buckets {
		if !name.MatchString(b.Bucket) {
			return nil, fmt.Errorf("uncached_isl_buckets: bucket %.80q: want %s", b.Bucket, name)
		}
		out.Buckets = append(out.Buckets, queue.Bucket{MinTokens: b.MinTokens, Name: b.Bucket})
	}
	for k := range p.Classes {
		c, err := p.Classes[k].build()
		if err != nil {
			return nil, err
		}
		out.Classes = append(out.Classes, c)
	}
	return out, out.Validate()
}

// maxDeadline bounds deadline_ms: a day.
const maxDeadline = 24 * time.Hour

// build returns the class for the scheduler. Profile.Validate checks its numbers.
func (c *class) build() (queue.Class, error) {
	none := queue.Class{}
	if !name.MatchString(c.Name) {
		return none, fmt.Errorf("policy_classes: name %.80q: want %s", c.Name, name)
	}
	if c.Family != "" && !name.MatchString(c.Family) {
		return none, fmt.Errorf("policy class %q: policy_family %.80q: want %s", c.Name, c.Family, name)
	}
	if !c.Admission.IsZero() {
		return none, fmt.Errorf("policy class %q: queue_admission: not yet", c.Name)
	}
	discipline := queue.FCFS
	if c.Policy != "" {
		at := slices.Index(queue.Disciplines, c.Policy)
		if at < 0 {
			return none, fmt.Errorf("policy class %q: queue_policy %.80q: want %s", c.Name, c.Policy, strings.Join(queue.Disciplines, " or "))
		}
		discipline = queue.Discipline(at)
	}
	if c.DeadlineMS < 0 || time.Duration(c.DeadlineMS) > maxDeadline/time.Millisecond {
		return none, fmt.Errorf("policy class %q: deadline_ms %d: want 0 to %d", c.Name, c.DeadlineMS, maxDeadline.Milliseconds())
	}
	return queue.Class{
		Name: c.Name, Family: c.Family, Bucket: c.Bucket, Discipline: discipline,
		Deadline: time.Duration(c.DeadlineMS) * time.Millisecond, Quantum: c.Quantum,
		Threshold: c.ThresholdFraction, ThresholdTokens: c.Threshold,
		Limits: queue.Limits{Requests: c.RequestLimit, Tokens: c.TokenLimit, CachedTokens: c.CachedTokenLimit},
	}, nil
}
