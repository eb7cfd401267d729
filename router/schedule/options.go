package schedule

import (
	"cmp"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
)

// Options configure a Scheduler. Its functions are called with the scheduler's
// lock held and must not call the scheduler.
type Options struct {
	// Config says how to weigh and choose; start from DefaultConfig.
	Config Config
	// Selector chooses; nil means a CostSelector. It belongs to the scheduler from
	// now on.
	Selector Selector
	// Load bounds the account. Its clock is also that of everything else here. Its
	// Ended is told of requests that end in silence or lose their worker.
	Load load.Options
	// Busy are the thresholds from which on a worker gets no requests.
	Busy BusyThresholds
	// Queue says when requests wait for a worker; the zero value lets none wait.
	Queue QueueOptions
	// Estimator and Held are for the CostSelector: see CostOptions.
	Estimator Estimator
	Held      func(m *index.Members, member int) uint64
	// Members is the current list of workers, which a decision then uses even when
	// its request came with an older one; nil uses the request's. It is cheap: it
	// is called for each decision.
	Members func() *index.Members
	// Worker describes a worker. It is asked when the list of members changes and
	// at WorkersChanged; nil knows nothing of any worker.
	Worker func(kv.Worker) WorkerConfig
	// PrefillDuration models how long a worker takes to compute tokens of a prompt
	// of which cached are there already; nil does not model it.
	PrefillDuration func(w kv.Worker, tokens, cached int) time.Duration
	// Refresh looks up anew what the workers have of a request that has waited for
	// RefreshAfter, by setting its Members and Hits; nil does not. RefreshAfter 0
	// means 10 s.
	Refresh      func(*Request)
	RefreshAfter time.Duration
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.RefreshAfter < 0 {
		return fmt.Errorf("overlap refresh after: %v is negative", o.RefreshAfter)
	}
	return cmp.Or(o.Config.Validate(), o.Busy.Validate())
}

func (o Options) withDefaults() Options {
	if o.Load.Now == nil {
		o.Load.Now = time.Now
	}
	if o.RefreshAfter == 0 {
		o.RefreshAfter = 10 * time.Second
	}
	if o.Worker == nil {
		o.Worker = func(kv.Worker) WorkerConfig { return WorkerConfig{} }
	}
	return o
}
