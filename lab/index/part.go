package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// order is what a process is told on standard input.
type order struct {
	Part Part          `json:"part"`
	Log  string        `json:"log"`
	Busy time.Duration `json:"busy"`
	// Decisions is how many decisions are timed in each case.
	Decisions int `json:"decisions"`
}

// ServePart measures the part that in asks for and writes its figures to out: the
// process of Options.Child.
func ServePart(ctx context.Context, in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	f, err := o.measure(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Part, err)
	}
	return json.NewEncoder(out).Encode(f)
}

func (o *order) measure(ctx context.Context) (f Figures, err error) {
	switch o.Part {
	case PartScore:
		return measureScore(ctx, o.Decisions)
	case PartSelect:
		return measureSelect(ctx, o.Decisions)
	}
	r, err := openReplay(o.Log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.log.Close()) }()
	switch o.Part {
	case PartEvents:
		return r.measureEvents()
	case PartMixed:
		return r.measureMixed()
	case PartLookups:
		return r.measureLookups()
	case PartBusy:
		return r.measureBusy(ctx, o.Busy)
	case PartVisible:
		return r.measureVisible(ctx, o.Busy)
	case PartMemory:
		return r.measureMemory()
	}
	return nil, fmt.Errorf("part %q is not known", o.Part)
}
