package engine

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/strictjson"
)

//go:embed steps.json
var stepsJSON []byte

// Recording is the file of an engine: how long its steps take, and what may differ in another run.
// docs/simulate.md describes the file.
type Recording struct {
	// About says where the numbers come from.
	About string `json:"about"`
	// BlockSize is in tokens, Blocks the capacity of the device, Budget the tokens of a step at most and
	// MaxRunning the requests. 0 leaves each to the scenario.
	BlockSize  int `json:"block_size,omitempty"`
	Blocks     int `json:"blocks,omitempty"`
	Budget     int `json:"budget,omitempty"`
	MaxRunning int `json:"max_running,omitempty"`
	// Tokens, Pairs and Context are the coordinates, ascending: tokens of the step, pairs of a prompt token
	// with a token that it attends to, and tokens that the decoding requests attend to.
	Tokens  []float64 `json:"tokens"`
	Pairs   []float64 `json:"prefill_pairs"`
	Context []float64 `json:"decode_context"`
	// StepMS has milliseconds by tokens, pairs and context.
	StepMS [][][]float64 `json:"step_ms"`
	// Ratios are the times of recorded steps over those of the table, by the tokens of a step. Without
	// ratios the scenario's noise, padding and stalls apply.
	Ratios []Ratios `json:"ratios,omitempty"`
	// OutsideMS are milliseconds from a client to the engine and back, each equally likely.
	OutsideMS []float64 `json:"outside_ms,omitempty"`
}

// Ratios are those of steps of at least From tokens, each equally likely.
type Ratios struct {
	From   int       `json:"from_tokens"`
	Values []float64 `json:"values"`
}

// Steps is a table of step times. It does not change.
type Steps struct {
	Recording
	// ms is indexed by [tokens][pairs][context].
	ms []float64
}

// DefaultSteps returns the table of steps.json.
var DefaultSteps = sync.OnceValue(func() *Steps {
	t, err := ReadSteps(bytes.NewReader(stepsJSON))
	if err != nil {
		panic("BUG: engine: steps.json: " + err.Error())
	}
	return t
})

// ReadSteps reads the JSON of a Recording. The error names the field.
func ReadSteps(r io.Reader) (*Steps, error) {
	var recording Recording
	if err := strictjson.Decode(r, &recording, "recording", nil); err != nil {
		return nil, fmt.Errorf("recorded engine: %w", err)
	}
	return NewSteps(recording)
}

// NewSteps returns the table of a recording. The error names the first field that is out of range.
func NewSteps(r Recording) (*Steps, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("recorded engine: %w", err)
	}
	t := &Steps{Recording: r, ms: make([]float64, 0, len(r.Tokens)*len(r.Pairs)*len(r.Context))}
	for _, plane := range r.StepMS {
		for _, row := range plane {
			t.ms = append(t.ms, row...)
		}
	}
	return t, nil
}

// Limits of a recording.
const (
	maxAxis   = 1000
	maxNumber = 1e12
)

func (r *Recording) validate() error {
	for _, f := range []struct {
		name string
		v    int
	}{{"block_size", r.BlockSize}, {"blocks", r.Blocks}, {"budget", r.Budget}, {"max_running", r.MaxRunning}} {
		if f.v < 0 || f.v > 1<<20 {
			return fmt.Errorf("%s: %d is not in 0..%d", f.name, f.v, 1<<20)
		}
	}
	for _, axis := range []struct {
		name   string
		values []float64
	}{{"tokens", r.Tokens}, {"prefill_pairs", r.Pairs}, {"decode_context", r.Context}} {
		if n := len(axis.values); n < 1 || n > maxAxis {
			return fmt.Errorf("%s: %d values, want 1 to %d", axis.name, n, maxAxis)
		}
		for i, v := range axis.values {
			if !(v >= 0 && v <= maxNumber) || i > 0 && v <= axis.values[i-1] {
				return fmt.Errorf("%s: value %d is %v, want 0..%g, more than the one before", axis.name, i, v, float64(maxNumber))
			}
		}
	}
	if len(r.StepMS) != len(r.Tokens) {
		return fmt.Errorf("step_ms: %d planes, want one for each of %d tokens", len(r.StepMS), len(r.Tokens))
	}
	for i, plane := range r.StepMS {
		if len(plane) != len(r.Pairs) {
			return fmt.Errorf("step_ms[%d]: %d rows, want one for each of %d prefill_pairs", i, len(plane), len(r.Pairs))
		}
		for j, row := range plane {
			if len(row) != len(r.Context) {
				return fmt.Errorf("step_ms[%d][%d]: %d values, want one for each of %d decode_context", i, j, len(row), len(r.Context))
			}
			if err := inRange(fmt.Sprintf("step_ms[%d][%d]", i, j), row); err != nil {
				return err
			}
		}
	}
	for i, c := range r.Ratios {
		if i == 0 && c.From != 1 || i > 0 && c.From <= r.Ratios[i-1].From {
			return fmt.Errorf("ratios[%d].from_tokens: %d, want 1 first and then more each time", i, c.From)
		}
		if len(c.Values) == 0 {
			return fmt.Errorf("ratios[%d].values: none", i)
		}
		if err := inRange(fmt.Sprintf("ratios[%d].values", i), c.Values); err != nil {
			return err
		}
	}
	return inRange("outside_ms", r.OutsideMS)
}

// inRange returns an error that names the first value that is no time.
func inRange(name string, values []float64) error {
	for i, v := range values {
		if !(v >= 0 && v <= 1e9) {
			return fmt.Errorf("%s: value %d is %v, want 0..1e9", name, i, v)
		}
	}
	return nil
}

// Draw returns the milliseconds of one step: those of Milliseconds times a recorded ratio. ok is false for a
// recording without ratios.
func (t *Steps) Draw(rng *rand.Rand, tokens, prefillPairs, decodeContext float64) (ms float64, ok bool) {
	if len(t.Ratios) == 0 {
		return 0, false
	}
	class := 0
	for class+1 < len(t.Ratios) && tokens >= float64(t.Ratios[class+1].From) {
		class++
	}
	return t.Milliseconds(tokens, prefillPairs, decodeContext) * drawn(rng, t.Ratios[class].Values), true
}

// Outside returns the seconds that one request spends outside of the engine.
func (t *Steps) Outside(rng *rand.Rand) float64 {
	if len(t.OutsideMS) == 0 {
		return 0
	}
	return drawn(rng, t.OutsideMS) / 1e3
}

func drawn(rng *rand.Rand, values []float64) float64 { return values[rng.IntN(len(values))] }

// Milliseconds returns how long a step takes: tokens are computed, prefillPairs pairs of tokens are
// attended to by prompts, and decodeContext tokens by decoding requests. Between recorded steps it
// interpolates, and beyond the last one it goes on in the same direction.
func (t *Steps) Milliseconds(tokens, prefillPairs, decodeContext float64) float64 {
	cells, weights := t.Corners(tokens, prefillPairs, decodeContext)
	sum := 0.0
	for i, at := range cells {
		sum += weights[i] * t.ms[at]
	}
	return max(sum, t.ms[0]/2)
}

// Corners returns the cells of the table that Milliseconds reads for a step, and their weights. A cell without a
// weight may be any.
func (r *Recording) Corners(tokens, prefillPairs, decodeContext float64) (cells [8]int, weights [8]float64) {
	i, x := locate(r.Tokens, tokens)
	j, y := locate(r.Pairs, prefillPairs)
	k, z := locate(r.Context, decodeContext)
	for corner := range 8 {
		a, b, c := corner&1, corner>>1&1, corner>>2&1
		if weight := side(x, a) * side(y, b) * side(z, c); weight != 0 {
			cells[corner], weights[corner] = ((i+a)*len(r.Pairs)+j+b)*len(r.Context)+k+c, weight
		}
	}
	return cells, weights
}

func side(x float64, upper int) float64 {
	if upper == 1 {
		return x
	}
	return 1 - x
}

// locate returns the interval [i, i+1] of the axis that has v, and where v is in it: 0 at the
// start, 1 at the end, more beyond the end of the axis.
func locate(axis []float64, v float64) (i int, x float64) {
	for i < len(axis)-2 && v >= axis[i+1] {
		i++
	}
	if len(axis) == 1 {
		return 0, 0
	}
	return i, max(0, (v-axis[i])/(axis[i+1]-axis[i]))
}
