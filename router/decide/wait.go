package decide

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/router/index"
)

// waitInterval is how often WaitForWorkers looks.
const waitInterval = 50 * time.Millisecond

// InitialWorkers is how many workers there should be before requests are taken; 0 with
// skip_initial_worker_wait.
func (r *Router) InitialWorkers() int { return r.config.InitialWorkers() }

// Workers is the number of workers that are known; ranks of one count once.
func (r *Router) Workers() int { return distinct(r.index.Members()) }

// WaitForWorkers waits until InitialWorkers are known, for callers that embed a Router
// and take no request before; what serves requests refuses them instead. The error is that of ctx, and
// says how many are missing.
func (r *Router) WaitForWorkers(ctx context.Context) error {
	want := r.InitialWorkers()
	if r.Workers() >= want {
		return nil
	}
	look := time.NewTicker(waitInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d initial workers: %w", r.Workers(), want, ctx.Err())
		case <-look.C:
			if r.Workers() >= want {
				return nil
			}
		}
	}
}

func distinct(m *index.Members) int {
	n := 0
	for i := range m.List {
		if i == 0 || m.List[i].Worker.ID != m.List[i-1].Worker.ID {
			n++
		}
	}
	return n
}
