package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/command/inspect"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// Command checks what its fields name.
type Command struct {
	Agent   string   `default:"127.0.0.1:9400" placeholder:"ADDRESS" help:"Admin server of the agent; none leaves the agent and the node out."`
	Router  string   `placeholder:"ADDRESS" help:"HTTP address of a router. Default: none."`
	Engines []string `name:"engine" sep:"none" placeholder:"URL" help:"Inference server, with the keys of --worker of the router. Repeat the flag for each server."`
	NATS    string   `name:"nats" env:"BLOCKYARD_NATS" placeholder:"URL" help:"NATS server. Default: NATS_SERVER."`
	Cluster string   `default:"default" env:"BLOCKYARD_CLUSTER" help:"Cluster whose agents to expect on NATS."`

	Socket   string        `default:"/run/blockyard/agent.sock" env:"BLOCKYARD_SOCKET" help:"The agent's socket for engines."`
	HostDir  string        `default:"/dev/shm/blockyard" env:"BLOCKYARD_HOST_DIR" help:"Directory of the host tier."`
	HostSize bytesize.Size `default:"1GiB" env:"BLOCKYARD_HOST_SIZE" help:"Size of the host tier."`
	DiskDir  string        `default:"/var/lib/blockyard" env:"BLOCKYARD_DISK_DIR" help:"Directory of the disk tier."`
	DiskSize bytesize.Size `default:"0" env:"BLOCKYARD_DISK_SIZE" help:"Size of the disk tier."`

	Canary  bool     `help:"Send a prompt twice through the front door of --door, for each model of --router, and follow it: to a worker, through the events of that worker, and back to the worker with a hit."`
	Door    string   `default:"127.0.0.1:8000" placeholder:"ADDRESS" help:"Front door that --canary sends to: the router's --http-port."`
	Models  []string `name:"canary-model" placeholder:"NAME" help:"Model of --canary; repeatable. Default: each model of the router."`
	DoorKey string   `name:"door-key-file" type:"path" placeholder:"FILE" help:"File with the API key of --canary."`

	JSON    bool          `name:"json" help:"Print the findings as one JSON object."`
	Timeout time.Duration `default:"10s" help:"How long to wait for all answers."`
	inspect.Caller

	// Auth is the login to NATS.
	Auth natsauth.Settings `kong:"-"`
	// root is "/" or a test's copy of parts of it.
	root string
	// smartctl is a test's program; empty for that of the node.
	smartctl string
	// silence is how long an agent may be silent on NATS; 0 means announcementWait. refusal is how
	// long the agent may take to refuse a connection; 0 means refusalWait.
	silence, refusal time.Duration
	// arrival is how long the events of the canary may take; 0 means canaryWait.
	arrival time.Duration

	findings []Finding
	// seen are the parts that have answered, for comparisons across them.
	seen parts
}

// Help implements kong's HelpProvider.
func (Command) Help() string {
	return `Each finding names its cause and what to change; docs/doctor.md lists the causes. The exit status is 0 when nothing was found, 3 when there are warnings alone, and 1 when there is an error. Run it on the agent's node, as the user of the engines.`
}

// Finding is a cause that was found.
type Finding struct {
	Cause
	// Subject is the part that has it, such as an address, a worker or a directory.
	Subject string `json:"subject"`
	// Seen is what doctor saw, Change the setting or command that ends it.
	Seen   string `json:"seen"`
	Change string `json:"change"`
}

// Verdict is the error of a Command that found something.
type Verdict struct{ Errors, Warnings int }

// Error implements error.
func (v Verdict) Error() string { return fmt.Sprintf("%d errors, %d warnings", v.Errors, v.Warnings) }

// exitWarned is the exit status when there are warnings alone.
const exitWarned = 3

// ExitStatus is the exit status of the program: 1 with an error, 3 with warnings alone.
func (v Verdict) ExitStatus() int {
	if v.Errors > 0 {
		return 1
	}
	return exitWarned
}

// parts are what the checked parts told.
type parts struct {
	agent   *agentState
	router  *routerState
	engines []*workers.Worker
	checked []string
}

// Validate checks the flags. Kong reports its error as one of usage.
func (c *Command) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout %v: want more than 0s", c.Timeout)
	}
	if c.Canary && c.Router == "" {
		return errors.New("--canary: want --router ADDRESS, which tells what it knows of the prompt")
	}
	for _, a := range []struct{ flag, address string }{{"--agent", c.Agent}, {"--router", c.Router}, {"--door", c.Door}} {
		if a.address == "" || a.address == none {
			continue
		}
		if _, err := c.Open(a.address); err != nil {
			return fmt.Errorf("%s: %w", a.flag, err)
		}
	}
	for _, e := range c.Engines {
		if _, err := workers.ParseSpec(e); err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
	}
	return nil
}

// none is the value of --agent that leaves the agent out.
const none = "none"

// Run asks every part and prints the findings. The error is a Verdict when there are any.
func (c *Command) Run(ctx context.Context, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	c.root, c.silence, c.refusal = cmp.Or(c.root, "/"), cmp.Or(c.silence, announcementWait), cmp.Or(c.refusal, refusalWait)
	if c.Agent != none {
		c.checkNode(ctx)
		c.checkSocket(ctx)
		c.checkAgent(ctx)
	}
	c.checkNATS(ctx)
	c.checkRouter(ctx)
	if err := c.checkEngines(ctx); err != nil {
		return err
	}
	c.compare()
	c.compareVersions()
	c.checkCanary(ctx)
	var v Verdict
	for _, f := range c.findings {
		if f.Level == Error {
			v.Errors++
		} else {
			v.Warnings++
		}
	}
	if err := c.print(stdout, v); err != nil {
		return err
	}
	if v == (Verdict{}) {
		return nil
	}
	return v
}

// found adds a finding.
func (c *Command) found(id, subject, change, seen string, args ...any) {
	c.findings = append(c.findings, Finding{Cause: causeOf(id), Subject: subject, Seen: fmt.Sprintf(seen, args...), Change: change})
}

// checked notes a part that was asked.
func (c *Command) checked(part string) { c.seen.checked = append(c.seen.checked, part) }

// print writes the findings, errors first, as text or as JSON.
func (c *Command) print(w io.Writer, v Verdict) error {
	slices.SortStableFunc(c.findings, func(a, b Finding) int { return cmp.Compare(a.Level, b.Level) })
	if c.JSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			Checked  []string  `json:"checked"`
			Findings []Finding `json:"findings"`
			Errors   int       `json:"errors"`
			Warnings int       `json:"warnings"`
		}{c.seen.checked, append([]Finding{}, c.findings...), v.Errors, v.Warnings})
	}
	var b strings.Builder
	for _, part := range c.seen.checked {
		fmt.Fprintf(&b, "checked  %s\n", inspect.Printable(part))
	}
	for _, f := range c.findings {
		fmt.Fprintf(&b, "\n%-8s %s: %s (%s)\n", f.Level, f.Area, f.Text, f.ID)
		fmt.Fprintf(&b, "  where   %s\n  seen    %s\n  change  %s\n", inspect.Printable(f.Subject), inspect.Printable(f.Seen), f.Change)
	}
	if len(c.findings) == 0 {
		b.WriteString("nothing found\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
