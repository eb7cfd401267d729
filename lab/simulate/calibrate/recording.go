package calibrate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Step is a step of a recorded engine.
type Step struct {
	// Start and End are in seconds since 1970. More says that the next step follows at once.
	Start float64 `json:"start"`
	End   float64 `json:"end"`
	More  bool    `json:"more"`
	// Prompt tokens and Decodes are computed. Prompts attend to Pairs of tokens, decoding requests to Context
	// tokens.
	Prompt  int     `json:"prompt"`
	Decodes int     `json:"decodes"`
	Pairs   float64 `json:"pairs"`
	Context float64 `json:"context"`
}

// Arrival is a request of a recorded engine.
type Arrival struct {
	ID string `json:"id"`
	// Added is when an idle engine got the request, 0 for an engine that was busy. First is the end of the step
	// that made the first token. Both are in seconds since 1970.
	Added float64 `json:"added"`
	First float64 `json:"first"`
}

// Recording is what an engine has written.
type Recording struct {
	Steps    []Step
	Arrivals map[string]Arrival
}

// maxLine bounds a line of a recording.
const maxLine = 1 << 16

// Read reads a recording: lines of JSON, each {"step": Step} or {"request": Arrival}. A last line without an
// end is left out: the engine may be writing it. The error names the line.
func Read(r io.Reader) (*Recording, error) {
	out := &Recording{Arrivals: make(map[string]Arrival)}
	in := bufio.NewReaderSize(r, maxLine)
	for number := 1; ; number++ {
		text, err := in.ReadSlice('\n')
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("recording, line %d: %w", number, err)
		}
		var line struct {
			Step    *Step    `json:"step"`
			Request *Arrival `json:"request"`
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return nil, fmt.Errorf("recording, line %d: %w", number, err)
		}
		switch {
		case line.Step != nil:
			if s := line.Step; !(s.End > s.Start) || s.Prompt < 0 || s.Decodes < 0 || s.Prompt+s.Decodes == 0 {
				return nil, fmt.Errorf("recording, line %d: step %+v, want an end after the start and at least one token", number, *s)
			}
			out.Steps = append(out.Steps, *line.Step)
		case line.Request != nil:
			out.Arrivals[line.Request.ID] = *line.Request
		default:
			return nil, fmt.Errorf("recording, line %d: neither step nor request", number)
		}
	}
}

// span is a time in which a load ran, in seconds since 1970.
type span struct{ from, to float64 }

// sample is the cost of a step.
type sample struct{ tokens, pairs, context, ms float64 }

// samples returns the costs of the steps within spans. A step that another one follows lasts until that
// one begins.
func (r *Recording) samples(spans []span) (out []sample) {
	for i, s := range r.Steps {
		end := s.End
		if s.More {
			if i+1 == len(r.Steps) {
				continue
			}
			end = r.Steps[i+1].Start
		}
		for _, in := range spans {
			if s.Start >= in.from && end <= in.to {
				out = append(out, sample{float64(s.Prompt + s.Decodes), s.Pairs, s.Context, 1e3 * (end - s.Start)})
			}
		}
	}
	return out
}

// outside returns times in milliseconds that requests spent between client and engine, both ways: the way to
// the engine of a request that met an idle engine, and the way back of any request.
func (r *Recording) outside(answers []Answer) (ms []float64) {
	var there, back []float64
	for _, a := range answers {
		e, ok := r.Arrivals[a.ID]
		if !ok {
			continue
		}
		if e.Added > 0 {
			there = append(there, 1e3*(e.Added-a.Sent))
		}
		back = append(back, 1e3*(a.First-e.First))
	}
	if len(there) == 0 {
		return nil
	}
	for i, b := range back {
		ms = append(ms, max(0, there[i%len(there)]+b))
	}
	return ms
}
