package cli

import (
	"context"
	"io"

	"github.com/blockyard-ai/blockyard/lab/simulate"
	"github.com/blockyard-ai/blockyard/lab/simulate/calibrate"
)

// simulateCmd compares ways to choose a worker in virtual time.
type simulateCmd struct {
	Seeds    int      `help:"Runs of each policy in each scenario." default:"3"`
	Scenario []string `help:"Scenario to run; may be given several times (default: all)." placeholder:"NAME"`
	Policy   []string `help:"Policy to run; may be given several times (default: all but the four variants of price)." placeholder:"NAME"`
	Workers  int      `help:"Workers of each scenario, 8 to 4096; the rate of requests grows with them (default: 8)." placeholder:"N"`
	Trace    []string `help:"Trace that is a scenario too; may be given several times." type:"path" placeholder:"FILE"`
	Format   string   `help:"Form of the traces: ${enum}. The last one is a directory." enum:"mooncake,bailian,kv-cache-tester" default:"mooncake"`
	Engine   string   `help:"File of a recorded engine that serves the traces (default: a modelled H100)." type:"path" placeholder:"FILE"`
	Evict    bool     `help:"Compare what a tier keeps, and nothing else."`
	Explain  bool     `help:"Print eight decisions of price in each scenario, with the price of each worker."`
	JSON     string   `name:"json" help:"File for all numbers." type:"path" placeholder:"FILE"`
	Page     string   `help:"File for an HTML page with plots." type:"path" placeholder:"FILE"`

	Calibrate bool    `help:"Record a real vLLM on CPU, and compare the simulator with it on a held-out load. Nothing else runs."`
	Table     string  `help:"With --calibrate: file for the recorded engine, for --engine." type:"path" placeholder:"FILE"`
	Rate      float64 `help:"With --calibrate: requests a second of the held-out load." default:"10"`
	Seconds   float64 `help:"With --calibrate: duration of the held-out load. The recording takes twice as long." default:"75"`
	Python    string  `help:"With --calibrate: a python that can import vLLM and interop/calibrate; make simulate has one." type:"path" placeholder:"PYTHON"`
}

// Help implements kong's HelpProvider.
func (simulateCmd) Help() string {
	return `The production router decides for simulated engines, tiers and users: one seed, one result. Each table is a scenario, each row a policy: the rules of other routers, textbook rules, weights and price, and price with true parameters and lengths as the oracle. Times are in milliseconds. "good/s" is the requests within the scenario's limits. "most" and "least" are the time-weighted backlogs, in seconds of work left, of the most and the least loaded worker over the fair one. docs/simulate.md describes the models.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *simulateCmd) Validate() error {
	if c.Calibrate {
		o := c.calibration(io.Discard)
		return o.Validate()
	}
	o := c.options(io.Discard)
	return o.Validate()
}

// Run simulates and prints.
func (c *simulateCmd) Run(ctx context.Context, stdout io.Writer) error {
	if c.Calibrate {
		return calibrate.Run(ctx, c.calibration(stdout))
	}
	_, err := simulate.Run(ctx, c.options(stdout))
	return err
}

func (c *simulateCmd) calibration(out io.Writer) calibrate.Options {
	return calibrate.Options{Python: c.Python, Table: c.Table, Rate: c.Rate, Seconds: c.Seconds, Out: out}
}

func (c *simulateCmd) options(out io.Writer) simulate.Options {
	return simulate.Options{Seeds: c.Seeds, Scenarios: c.Scenario, Policies: c.Policy, Workers: c.Workers, Traces: c.Trace, Format: simulate.Format(c.Format), Engine: c.Engine, Evict: c.Evict, Explain: c.Explain, JSON: c.JSON, Page: c.Page, Out: out}
}
