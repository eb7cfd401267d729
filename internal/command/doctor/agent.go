package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

// refusalWait is Command.refusal when it is 0.
const refusalWait = 300 * time.Millisecond

// checkSocket connects to the agent's socket as an engine does, and leaves before HELLO.
func (c *Command) checkSocket(ctx context.Context) {
	c.checked("socket " + c.Socket)
	start := "start the agent, or give connector and agent one --socket"
	conn, err := proto.Dial(ctx, c.Socket)
	switch {
	case errors.Is(err, os.ErrNotExist):
		c.found("agent-absent", c.Socket, start, "no such file")
		return
	case errors.Is(err, os.ErrPermission):
		c.found("socket-forbidden", c.Socket, fmt.Sprintf("--allow-uid %d at the agent", os.Getuid()), "user %s may not open it", userName(os.Getuid()))
		return
	case err != nil:
		c.found("agent-gone", c.Socket, start, "%v", err)
		return
	}
	defer conn.Close()
	if peer, err := conn.Peer(); err == nil {
		c.checkPeer(peer.PID)
	}
	if err := conn.SetReceiveDeadline(time.Now().Add(c.refusal)); err != nil {
		return
	}
	frame, err := conn.Receive()
	if err != nil {
		return // no refusal came
	}
	var refused proto.Error
	if frame.Type != proto.TypeError || proto.Decode(frame.Type, frame.Body, &refused) != nil {
		return
	}
	switch refused.Code {
	case proto.CodeDenied:
		c.found("user-denied", c.Socket, fmt.Sprintf("--allow-uid %d at the agent", os.Getuid()), "%s", refused.Text)
	case proto.CodeLimit:
		c.found("agent-full", c.Socket, "LimitNOFILE= of the agent's unit, --ulimit nofile= in containers", "%s", refused.Text)
	}
}

// checkPeer looks whether this process sees the agent's.
func (c *Command) checkPeer(pid int32) {
	_, err := os.Stat(filepath.Join(c.root, "proc", strconv.Itoa(int(pid))))
	if pid != 0 && err == nil {
		return
	}
	c.found("pid-hidden", c.Socket, "hostPID: true for the agent, or one pid namespace for agent and engine (shareProcessNamespace, --pid)", "the agent's process has no pid here")
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username + " (" + u.Uid + ")"
	}
	return strconv.Itoa(uid)
}

// agentState is the part of GET /v1/stats that is checked.
type agentState struct {
	// version is that of blockyard_build_info; empty when unknown.
	version  string
	Node     string
	Sessions int
	Streams  []struct {
		Owner       string
		PublisherID string `json:"publisher_id"`
		Health      string
		Dropped     map[string]uint64
		Rank        *struct {
			Frames, Lost, Listed uint64
			BadFrames            uint64 `json:"bad_frames"`
			BadEvents            uint64 `json:"bad_events"`
			Replays              uint64 `json:"replays"`
			ReplayFailures       uint64 `json:"replay_failures"`
		}
	}
	Pools      []poolState
	Connectors []struct {
		Worker, Role string
		Rank         uint32
		Connector    string
		Connected    int
		StoredBlocks uint64 `json:"stored_blocks"`
		FailedLoads  uint64 `json:"failed_loads"`
		Errors       uint64
	}
	Engines struct {
		Denied, Refused, Panics uint64
		Stuck                   uint64 `json:"former_stuck"`
	}
	Outputs struct {
		ZMQFailed         uint64 `json:"zmq_failed"`
		DynamoFailed      uint64 `json:"dynamo_failed"`
		CheckpointsFailed uint64 `json:"checkpoints_failed"`
		Dynamo            struct {
			Rivals uint64 `json:"rival_sources"`
		}
	}
}

type poolState struct {
	Pool             uint64
	Model, Namespace string
	BlockSize        uint32 `json:"block_size"`
	Sessions         int
	DiskOpen         bool   `json:"disk_breaker_open"`
	DiskReadOnly     bool   `json:"disk_read_only"`
	CorruptReads     uint64 `json:"corrupt_reads"`
	CorruptHost      uint64 `json:"corrupt_host"`
	GrowErrors       uint64 `json:"grow_errors"`
	GrantsOverdue    int    `json:"grants_overdue"`
}

// checkAgent asks the agent's HTTP server.
func (c *Command) checkAgent(ctx context.Context) {
	shown := natssource.WithoutCredentials(c.Agent)
	c.checked("agent " + shown)
	server, err := c.Open(c.Agent)
	var body json.RawMessage
	if err == nil {
		body, err = server.Get(ctx, "/v1/stats")
	}
	s := new(agentState)
	if err == nil {
		err = json.Unmarshal(body, s)
	}
	if err != nil {
		c.found("admin-unreachable", shown, "--admin 127.0.0.1:9400 at the agent, or --agent ADDRESS here: the agent's ready line has its address", "%v", err)
		return
	}
	s.version = buildVersion(ctx, server)
	c.seen.agent = s
	if _, err := server.Text(ctx, "/readyz"); err != nil {
		c.found("agent-not-ready", shown, "wait; when it lasts, the agent's log says what it waits for", "%v", err)
	}
	c.checkSessions(s)
	c.checkStreams(s)
	c.checkPools(s)
	c.checkOutputs(s)
}

// checkSessions looks at what the agent says of its engines.
func (c *Command) checkSessions(s *agentState) {
	if s.Sessions == 0 {
		c.found("no-engines", s.Node, "start vLLM with --kv-transfer-config \"$(blockyard connector-config blockyard --engine vllm)\"", "0 sessions")
	}
	for _, e := range []struct {
		id, change string
		n          uint64
	}{
		{"engines-denied", "--allow-uid, or LimitNOFILE=: the line \"connection denied\" of the agent's log has the user", s.Engines.Denied},
		{"engines-refused", "the line \"namespace refused\" or \"connection ended\" of the agent's log names the flag", s.Engines.Refused},
		{"session-panics", "report the line \"a session panicked\" of the agent's log", s.Engines.Panics},
		{"stuck-sessions", "hostPID: true, no ProtectProc=; then discard the host tier or restart its engines", s.Engines.Stuck},
	} {
		if e.n > 0 {
			c.found(e.id, s.Node, e.change, "%d since the agent's start", e.n)
		}
	}
	for _, r := range s.Connectors {
		who := fmt.Sprintf("worker %s/%d", r.Worker, r.Rank)
		if r.FailedLoads > 0 {
			c.found("loads-failed", who, "the engine's log has a line of the connector for each", "%d failed loads", r.FailedLoads)
		}
		if r.Errors > 0 {
			c.found("connector-errors", who, "install the connector of the agent's release; the agent's log names frame and reason", "%d errors", r.Errors)
		}
	}
}

// eventsConfig is the option of vLLM that publishes events.
const eventsConfig = `--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'`

// checkStreams looks at the events of each engine.
func (c *Command) checkStreams(s *agentState) {
	frames := make(map[string]uint64)
	for _, st := range s.Streams {
		if st.Rank == nil {
			continue
		}
		r := st.Rank
		frames[st.Owner] = r.Frames
		switch {
		case r.BadFrames+r.BadEvents > 0:
			c.found("events-unreadable", st.Owner, "report the engine's version with recent_bad of GET /v1/stats", "%d frames and %d events could not be read", r.BadFrames, r.BadEvents)
		case r.Lost > 0:
			c.found("events-lost", st.Owner, "replay_endpoint and a larger buffer_steps in --kv-events-config", "%d losses, %d failed replays", r.Lost, r.ReplayFailures)
		// Without a loss, a later replay succeeded. If all but at most one replay failed, the engine
		// answers none.
		case r.ReplayFailures > 2 && r.ReplayFailures+1 >= r.Replays:
			c.found("replay-silent", st.Owner, "a replay_endpoint in --kv-events-config that the agent reaches", "%d of %d replays failed", r.ReplayFailures, r.Replays)
		case st.Health != "exact":
			c.found("stream-degraded", st.Owner, "wait; when it lasts, POST /reset_prefix_cache of the engine ends it", "health %s, %d listed blocks", st.Health, r.Listed)
		}
		for reason, n := range st.Dropped {
			c.found("events-dropped", st.Owner, "docs/fix.md#a-rank-is-degraded has each reason", "%d blocks dropped: %s", n, reason)
		}
	}
	for _, r := range s.Connectors {
		if r.Role != string(proto.RoleScheduler) || r.Connected == 0 {
			continue // a sum outlives its engine
		}
		who := fmt.Sprintf("worker %s/%d", r.Worker, r.Rank)
		switch n, follows := frames[who]; {
		case !follows:
			c.found("engine-without-events", who, eventsConfig, "the engine named no endpoint of events")
		case n == 0 && r.StoredBlocks > 0:
			c.found("engine-silent", who, "an endpoint that the agent reaches: tcp://*:PORT on one network, ipc:///run/blockyard/NAME between pods", "0 frames, and %d stored blocks", r.StoredBlocks)
		}
	}
}

// checkPools looks at the tiers.
func (c *Command) checkPools(s *agentState) {
	models := make(map[string][]poolState)
	for _, p := range s.Pools {
		models[p.Model] = append(models[p.Model], p)
		who := fmt.Sprintf("pool %d of %s", p.Pool, p.Model)
		switch {
		case p.DiskOpen:
			c.found("disk-off", who, "replace the device: dmesg and smartctl name it; docs/fix.md#the-disk-fails", "disk_breaker_open")
		case p.DiskReadOnly:
			c.found("disk-read-only", who, "mount the file system of --disk-dir writable, or free the pool below it", "disk_read_only")
		}
		if p.CorruptReads+p.CorruptHost > 0 {
			c.found("corrupt-blocks", who, "test the disk (smartctl) and the memory (edac-util)", "%d blocks on disk, %d in host memory", p.CorruptReads, p.CorruptHost)
		}
		if p.GrowErrors > 0 {
			c.found("tier-cannot-grow", who, "more room in --host-dir and --disk-dir, or a higher memory limit", "%d extents could not be made", p.GrowErrors)
		}
		if p.GrantsOverdue > 0 {
			c.found("engine-hangs", who, "look at the engine's log and GPU; ulimit -l unlimited where copies are slow", "%d granted slots are overdue", p.GrantsOverdue)
		}
	}
	for model, list := range models {
		busy := slices.DeleteFunc(list, func(p poolState) bool { return p.Sessions == 0 })
		if len(busy) < 2 {
			continue
		}
		var each []string
		for _, p := range busy {
			each = append(each, fmt.Sprintf("%s (block size %d)", p.Namespace, p.BlockSize))
		}
		c.found("namespaces-differ", model, "the same model files, --served-model-name, --max-model-len, --block-size, dtype and parallel sizes at all engines", "namespaces %s", strings.Join(each, ", "))
	}
}

// checkOutputs looks at what the agent publishes.
func (c *Command) checkOutputs(s *agentState) {
	o := &s.Outputs
	for _, f := range []struct {
		change string
		n      uint64
	}{
		{"another port, or --zmq-host; the agent's log names it", o.ZMQFailed},
		{"a --dynamo-discovery that can be written", o.DynamoFailed},
		{"a directory of --socket that can be written and has room", o.CheckpointsFailed},
	} {
		if f.n > 0 {
			c.found("output-failed", s.Node, f.change, "%d failures", f.n)
		}
	}
	if o.Dynamo.Rivals > 0 {
		c.found("rival-publisher", s.Node, "switch the engine's own Dynamo publisher off", "%d rivals", o.Dynamo.Rivals)
	}
}
