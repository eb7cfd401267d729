package calibrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/simulate"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
)

// Options of a run.
type Options struct {
	// Python can import vLLM and interop/calibrate.
	Python string
	// Table is the file for the recorded engine; empty keeps none.
	Table string
	// Rate is the requests a second of the held-out load, 1..200. The loads of the recording have 0.5 to 1.3 times as many.
	Rate float64
	// Seconds is how long the held-out load lasts, 5..600. The recording takes twice as long.
	Seconds float64
	// Out gets the figures.
	Out io.Writer
}

// Validate reports the first option out of range.
func (o *Options) Validate() error {
	switch {
	case o.Python == "":
		return errors.New("calibrate python: is required: make simulate ARGS=--calibrate")
	case !(o.Rate >= 1 && o.Rate <= 200):
		return fmt.Errorf("calibrate rate: %v is not in 1..200", o.Rate)
	case !(o.Seconds >= 5 && o.Seconds <= 600):
		return fmt.Errorf("calibrate seconds: %v is not in 5..600", o.Seconds)
	}
	return nil
}

const (
	// startTime bounds the start of the server: the first one reads gigabytes of libraries.
	startTime = 6 * time.Minute
	stopTime  = 40 * time.Second
	// seeds of the simulator's noise.
	seeds = 10
)

// recorded are the rates of the recording, over the held-out rate. Each is played passes times, and after each comes a part
// of the held-out load.
var recorded = []float64{0.5, 0.8, 1.3}

const passes = 2

// server is what interop/calibrate prints when its server serves.
type server struct {
	URL   string `json:"url"`
	Steps string `json:"steps"`
	engine.Recording
}

// Run records an engine, writes its table and compares the simulator with the engine.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "blockyard-calibrate-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w (files: %s)", err, dir)
		}
	}()
	s := cluster.NewSupervisor(dir, nil)
	defer s.Stop(stopTime)
	p, err := s.Start(cluster.Spec{Name: "server", Command: []string{o.Python, "-m", "calibrate", dir}})
	if err != nil {
		return err
	}
	var ready server
	started, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := p.Next(started, &ready); err != nil {
		return err
	}
	return o.compare(ctx, &ready)
}

// session plays loads on a server and keeps the recorded ones.
type session struct {
	o       *Options
	server  *server
	spans   []span
	answers []Answer
	loads   []played
	seed    uint64 // of the last load
}

// played is a load and what the engine made of it.
type played struct {
	load
	answers []Answer
}

// compare plays the loads on a server, fits a table and simulates the loads with the table.
func (o *Options) compare(ctx context.Context, ready *server) error {
	s := &session{o: o, server: ready}
	length := time.Duration(o.Seconds * float64(time.Second))
	if _, _, err := s.play(ctx, "warm-up", 1, length/6); err != nil {
		return err
	}
	held, err := s.playAll(ctx, length)
	if err != nil {
		return err
	}
	table, steps, err := s.fit()
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "%d steps and %d requests recorded; %d requests held out, %.1f/s\n", steps, len(s.answers), len(held.requests), o.Rate)
	for _, l := range s.loads {
		if _, err := l.report(table, o.Out); err != nil {
			return err
		}
	}
	c, err := held.report(table, o.Out)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.Out, c.String())
	return c.Check()
}

// playAll plays and records the loads of the recording, and plays a part of the held-out load after each. held is the whole
// held-out load, as it was played.
func (s *session) playAll(ctx context.Context, length time.Duration) (held played, err error) {
	held.name = "held-out"
	for pass := range passes {
		for k, factor := range recorded {
			l, during, err := s.play(ctx, fmt.Sprintf("recorded-%d-%d", pass, k), factor, length/time.Duration(len(recorded)))
			if err != nil {
				return held, err
			}
			s.record(l, during)
			part, _, err := s.play(ctx, fmt.Sprintf("held-out-%d-%d", pass, k), 1, length/time.Duration(passes*len(recorded)))
			if err != nil {
				return held, err
			}
			held.append(part)
		}
	}
	return held, nil
}

// append adds a part that was played at another time, when everything before it had ended. Its sessions are others than
// those before it.
func (l *played) append(part played) {
	begin, session := time.Duration(0), 0
	for i := range l.requests {
		begin = max(begin, l.requests[i].At+answerTime)
		session = max(session, l.requests[i].Session+1)
	}
	for _, r := range part.requests {
		r.At += begin
		r.Session += session
		l.requests = append(l.requests, r)
	}
	l.answers = append(l.answers, part.answers...)
}

// report simulates the load with a table, and prints and returns its figures.
func (l *played) report(table *engine.Steps, out io.Writer) (*Comparison, error) {
	r, err := simulate.Serve(table, l.requests, seeds)
	if err != nil {
		return nil, err
	}
	c := &Comparison{simulated(&r), measured(l.answers)}
	c.print(out, l.name)
	return c, nil
}

// play plays a load of factor times the held-out rate. No two loads have a prompt in common.
func (s *session) play(ctx context.Context, name string, factor float64, length time.Duration) (played, span, error) {
	s.seed++
	l, err := newLoad(name, s.seed, factor*s.o.Rate, length)
	if err != nil {
		return played{}, span{}, err
	}
	answers, during, err := play(ctx, s.server.URL, l)
	return played{l, answers}, during, err
}

// record makes a load one of those that the table is fitted to.
func (s *session) record(l played, during span) {
	s.spans, s.answers, s.loads = append(s.spans, during), append(s.answers, l.answers...), append(s.loads, l)
}

// fit returns the table of the recorded loads and the number of recorded steps, and writes the table's file.
func (s *session) fit() (*engine.Steps, int, error) {
	f, err := os.Open(s.server.Steps)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	recording, err := Read(f)
	if err != nil {
		return nil, 0, err
	}
	r := s.server.Recording
	steps, err := recording.Fit(&r, s.spans, s.answers)
	if err != nil {
		return nil, 0, err
	}
	if s.o.Table != "" {
		b, err := json.Marshal(&r)
		if err != nil {
			return nil, 0, err
		}
		if err := os.WriteFile(s.o.Table, append(b, '\n'), 0o644); err != nil {
			return nil, 0, err // names the file
		}
	}
	table, err := engine.NewSteps(r)
	return table, steps, err
}
