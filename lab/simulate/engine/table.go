package engine

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"sync"
)

//go:embed steps.csv
var stepsCSV []byte

// Steps is a table of recorded step times. It does not change.
type Steps struct {
	// tokens, prefill and decode are the coordinates, ascending: tokens of the step, millions of
	// pairs of a prefill token with a token that it attends to, and thousands of tokens that the
	// decoding requests attend to.
	tokens, prefill, decode []float64
	// ms is indexed by [tokens][prefill][decode].
	ms []float64
}

// DefaultSteps returns the table of steps.csv.
var DefaultSteps = sync.OnceValue(func() *Steps {
	t, err := ReadSteps(bytes.NewReader(stepsCSV))
	if err != nil {
		panic("BUG: engine: steps.csv: " + err.Error())
	}
	return t
})

// ReadSteps reads a table: lines of tokens, prefill context, decode context and milliseconds, after
// comments that begin with # and one line of names. Every combination of the coordinates must
// occur once. The error names line and field.
func ReadSteps(r io.Reader) (*Steps, error) {
	lines := csv.NewReader(r)
	lines.Comment, lines.FieldsPerRecord = '#', 4
	records, err := lines.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) < 2 {
		return nil, fmt.Errorf("steps: %d lines, want names and at least one step", len(records))
	}
	rows := make([][4]float64, 0, len(records)-1)
	t := &Steps{}
	for n, record := range records[1:] {
		var row [4]float64
		for i, field := range record {
			v, err := strconv.ParseFloat(field, 64)
			if err != nil || !(v >= 0 && v <= 1e9) {
				return nil, fmt.Errorf("steps: row %d, field %s: %q is not in 0..1e9", n+1, records[0][i], field)
			}
			row[i] = v
		}
		rows = append(rows, row)
		t.tokens, t.prefill, t.decode = append(t.tokens, row[0]), append(t.prefill, row[1]), append(t.decode, row[2])
	}
	for _, axis := range []*[]float64{&t.tokens, &t.prefill, &t.decode} {
		slices.Sort(*axis)
		*axis = slices.Compact(*axis)
	}
	if want := len(t.tokens) * len(t.prefill) * len(t.decode); want != len(rows) {
		return nil, fmt.Errorf("steps: %d rows, want %d for every combination of %d, %d and %d coordinates",
			len(rows), want, len(t.tokens), len(t.prefill), len(t.decode))
	}
	t.ms = slices.Repeat([]float64{math.NaN()}, len(rows))
	for n, row := range rows {
		at := t.index(find(t.tokens, row[0]), find(t.prefill, row[1]), find(t.decode, row[2]))
		if !math.IsNaN(t.ms[at]) {
			return nil, fmt.Errorf("steps: row %d is there twice", n+1)
		}
		t.ms[at] = row[3]
	}
	return t, nil
}

// find returns the position of a coordinate that the axis has.
func find(axis []float64, v float64) int { return slices.Index(axis, v) }

// index returns the position in ms.
func (t *Steps) index(tokens, prefill, decode int) int {
	return (tokens*len(t.prefill)+prefill)*len(t.decode) + decode
}

// Milliseconds returns how long a step takes: tokens are computed, prefill pairs of tokens are
// attended to by prompts, and decode tokens by decoding requests. Between recorded steps it
// interpolates, and beyond the last one it goes on in the same direction.
func (t *Steps) Milliseconds(tokens, prefillPairs, decodeContext float64) float64 {
	i, x := locate(t.tokens, tokens)
	j, y := locate(t.prefill, prefillPairs/1e6)
	k, z := locate(t.decode, decodeContext/1e3)
	sum := 0.0
	for corner := range 8 {
		a, b, c := corner&1, corner>>1&1, corner>>2&1
		weight := side(x, a) * side(y, b) * side(z, c)
		if weight != 0 {
			sum += weight * t.ms[t.index(i+a, j+b, k+c)]
		}
	}
	return max(sum, t.ms[0]/2)
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
