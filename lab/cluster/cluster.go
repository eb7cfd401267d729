package cluster

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strconv"
	"time"
)

// ErrTooLong says that an event did not happen within its limit.
var ErrTooLong = errors.New("it takes too long")

// Programs are the binaries that scenarios run.
type Programs struct {
	// Product has the commands agent and router. Lab has the others. Both are one
	// binary unless a shipped one is tested.
	Product, Lab string
}

// Options say where the programs and files of a cluster are.
type Options struct {
	// Programs must be set.
	Programs
	// Dirs are the directories; the caller removes them.
	Dirs *Dirs
	// Name keeps deployments on one NATS server apart; default lab-PID.
	Name string
	// NATSServer is the nats-server program that StartNATS runs. NATSURL is a server
	// that runs already.
	NATSServer, NATSURL string
	// JetStream makes the NATS server of StartNATS keep streams in Dirs.Work.
	JetStream bool
	// BlindRouter makes the NATS server refuse every query of the router, so that the router
	// cannot repair a loss.
	BlindRouter bool
	// Calls bounds the concurrent HTTP calls; default 16.
	Calls int
	// Died is called when a process ends unexpectedly; see NewSupervisor.
	Died func(error)
}

// Cluster is agents, engines, a router and a NATS server, each a process.
type Cluster struct {
	*Supervisor
	o      Options
	secret string // password of both NATS users
	port   int    // of the NATS server; 0 before its first start
	proxy  string // of the NATS server, for routers; empty without one
	client *Client
}

// New returns a cluster without processes, whose name and password for NATS are its own. The caller
// must call Close, which ends all processes.
func New(o Options) *Cluster {
	o.Name = cmp.Or(o.Name, "lab-"+strconv.Itoa(os.Getpid()))
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails: crypto/rand ends the process instead
	return &Cluster{
		Supervisor: NewSupervisor(o.Dirs.Logs, o.Died), o: o,
		secret: hex.EncodeToString(secret[:]), client: NewClient(cmp.Or(o.Calls, 16)),
	}
}

// Name returns the name of the deployment on the NATS server.
func (c *Cluster) Name() string { return c.o.Name }

// Close ends every process within budget as Stop does and returns what Stop
// returns.
func (c *Cluster) Close(budget time.Duration) []string {
	unclean := c.Stop(budget)
	c.client.Close()
	return unclean
}
