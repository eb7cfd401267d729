package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

// Options say where a rig's programs and files are.
type Options struct {
	// Programs must be set, and so must NATSServer, a nats-server program.
	Programs
	NATSServer string
	// Name begins the names of the rig's directories.
	Name string
	// Dir is where disk tiers, sockets and logs go, in a directory of the rig's own;
	// empty is the temporary directory. HostDir is where host tiers go, likewise;
	// empty is /dev/shm, or Dir where there is no such directory.
	Dir, HostDir string
	// BlindRouter has the NATS server refuse every question of the router to the
	// publishers, so that nothing that it misses can be repaired.
	BlindRouter bool
}

// sharedMemory is where Linux keeps files in memory.
const sharedMemory = "/dev/shm"

// Rig is the processes of one event path.
type Rig struct {
	o       Options
	dir     string // sockets, disk tiers, logs
	host    string // host tiers
	cluster string
	secret  string // password of both NATS users
	port    int    // of the NATS server; 0 before its first start
	starter *starter
	client  *http.Client
	procs   []*Process
}

// New makes the directories of a rig. Close must be called.
func New(o Options) (r *Rig, err error) {
	r = &Rig{o: o, client: &http.Client{Transport: &http.Transport{MaxIdleConns: 64, MaxIdleConnsPerHost: 16}}}
	if r.dir, err = os.MkdirTemp(o.Dir, o.Name+"-"); err != nil {
		return nil, fmt.Errorf("directory %q: %w", o.Dir, err)
	}
	if o.HostDir == "" {
		o.HostDir = sharedMemory
		if st, err := os.Stat(o.HostDir); err != nil || !st.IsDir() {
			o.HostDir = r.dir
		}
	}
	if r.host, err = os.MkdirTemp(o.HostDir, o.Name+"-"); err != nil {
		return nil, errors.Join(fmt.Errorf("host directory %q: %w", o.HostDir, err), os.RemoveAll(r.dir))
	}
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails: crypto/rand ends the process instead
	r.secret = hex.EncodeToString(secret[:])
	r.cluster = "rig-" + strconv.Itoa(os.Getpid())
	r.starter = newStarter(r.Logs())
	return r, os.Mkdir(r.Logs(), 0o700)
}

// Logs is the directory of the processes' logs.
func (r *Rig) Logs() string { return filepath.Join(r.dir, "logs") }

// Close kills every process and removes every file; with keepLogs all but the
// logs.
func (r *Rig) Close(keepLogs bool) error {
	for _, p := range r.procs {
		p.Kill()
	}
	r.starter.close()
	r.client.CloseIdleConnections()
	err := os.RemoveAll(r.host)
	if !keepLogs {
		return errors.Join(err, os.RemoveAll(r.dir))
	}
	entries, readErr := os.ReadDir(r.dir)
	err = errors.Join(err, readErr)
	for _, e := range entries {
		if path := filepath.Join(r.dir, e.Name()); path != r.Logs() {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// Cluster is the name under which the rig's agents publish.
func (r *Rig) Cluster() string { return r.cluster }

// Start starts any program as a child of the rig. env is added to its environment.
func (r *Rig) Start(name string, command, env []string) (*Process, error) {
	p, err := r.starter.start(name, command, env)
	if err == nil {
		r.procs = append(r.procs, p)
	}
	return p, err
}

// endpoint is the HTTP interface at an address.
func (r *Rig) endpoint(name, addr string) Endpoint {
	return Endpoint{name: name, url: "http://" + addr, client: r.client}
}

// Programs are the binaries that scenarios run.
type Programs struct {
	// Product has the commands agent and router. Lab has the others. Both are one
	// binary unless a shipped one is tested.
	Product, Lab string
}
