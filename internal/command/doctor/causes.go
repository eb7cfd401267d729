package doctor

import "slices"

// Level says how bad a finding is.
type Level string

// Levels of findings.
const (
	// Error: something does not work.
	Error Level = "error"
	// Warning: something works badly, or may soon not work.
	Warning Level = "warning"
)

// Cause is something that doctor can find.
type Cause struct {
	// ID is the name in --json and in docs/doctor.md.
	ID string `json:"id"`
	// Area is the part that is checked: node, agent, engine, nats, router or canary.
	Area  string `json:"area"`
	Level Level  `json:"level"`
	// Text says what is wrong in general.
	Text string `json:"text"`
}

// causes has every cause, by area.
var causes = []Cause{
	{"tier-space", "node", Error, "The file system of a tier is too small, or has too little room."},
	{"tier-memory", "node", Error, "A control group or the node has less memory than the tiers take."},
	{"tier-location", "node", Warning, "The host tier is not in memory, or the disk tier is."},
	{"memlock", "node", Warning, "The limit of locked memory is below the host tier."},
	{"disk-worn", "node", Warning, "A device of the disk tier has used most of its endurance."},
	{"descriptors", "node", Warning, "The limit of file descriptors is too low for the tiers and eight engines."},
	{"proc-hidden", "node", Error, "/proc hides the processes of other users from the agent."},
	{"socket-directory", "node", Error, "The directory of the socket cannot be written."},

	{"agent-absent", "agent", Error, "There is no socket: no agent has started."},
	{"agent-gone", "agent", Error, "The socket is there, and no agent listens."},
	{"socket-forbidden", "agent", Error, "This user may not open the socket."},
	{"user-denied", "agent", Error, "The agent refuses this user's engines."},
	{"agent-full", "agent", Error, "The agent has no file descriptors for further connections."},
	{"pid-hidden", "agent", Error, "The agent and this process do not see one another's processes."},
	{"admin-unreachable", "agent", Error, "The agent's HTTP server does not answer."},
	{"agent-not-ready", "agent", Error, "The agent does not serve engines yet."},
	{"no-engines", "agent", Warning, "No engine is connected."},
	{"engines-denied", "agent", Warning, "Connections were refused by user or by the limit of descriptors."},
	{"engines-refused", "agent", Warning, "Engines were refused: no room, or their worker id is taken."},
	{"session-panics", "agent", Error, "A defect of the agent ended sessions."},
	{"stuck-sessions", "agent", Warning, "Slots of sessions before the agent's restart stay out of use."},
	{"engine-without-events", "agent", Warning, "A connected engine publishes no KV events."},
	{"engine-silent", "agent", Warning, "The agent has heard no event of an engine that stores blocks."},
	{"events-lost", "agent", Warning, "Events of an engine were lost and could not be replayed."},
	{"replay-silent", "agent", Warning, "The engine answers no replay request."},
	{"events-unreadable", "agent", Error, "Events of an engine cannot be read."},
	{"events-dropped", "agent", Warning, "Blocks of events were dropped for a reason that a setting changes."},
	{"stream-degraded", "agent", Warning, "A stream is degraded without a loss: the agent repairs it, or waits for the engine's list."},
	{"namespaces-differ", "agent", Warning, "Engines of one model do not share blocks."},
	{"disk-off", "agent", Error, "The disk fails; its tier is off."},
	{"disk-read-only", "agent", Error, "The disk takes no writes."},
	{"corrupt-blocks", "agent", Error, "Blocks did not match their checksums."},
	{"tier-cannot-grow", "agent", Warning, "Extents could not be made."},
	{"engine-hangs", "agent", Warning, "An engine neither commits nor gives back its granted slots."},
	{"loads-failed", "agent", Warning, "Engines computed blocks that they could not load."},
	{"connector-errors", "agent", Warning, "The agent refuses frames of a connector."},
	{"output-failed", "agent", Warning, "An output of events or a checkpoint does not work."},
	{"rival-publisher", "agent", Warning, "Another process publishes the same ranks to Dynamo."},
	{"versions-differ", "agent", Warning, "Agent, connectors and router are of different releases that work together."},
	{"versions-apart", "agent", Error, "Agent, connectors and router are of releases that nobody has tested together."},

	{"engine-unreachable", "engine", Error, "The inference server does not answer, or is not healthy."},
	{"prefix-caching-off", "engine", Error, "The engine keeps no blocks of finished requests."},
	{"events-off", "engine", Error, "The engine publishes no KV events."},
	{"events-unreachable", "engine", Error, "The port of the engine's KV events does not answer."},
	{"replay-missing", "engine", Warning, "The engine cannot repeat lost events."},
	{"tokens-missing", "engine", Warning, "The engine neither renders nor tokenizes prompts for the router."},
	{"tokenizers-differ", "engine", Error, "Engines of one model turn one text into different tokens."},
	{"model-unknown", "engine", Error, "The router knows no worker of the engine's model."},
	{"block-size-differs", "engine", Error, "Two parts have different block sizes for one model."},
	{"connector-absent", "engine", Warning, "The engine runs without Blockyard's connector."},
	{"connector-disconnected", "engine", Error, "The engine's connector has no session at an agent."},

	{"nats-unreachable", "nats", Error, "No NATS server answers."},
	{"nats-refused", "nats", Error, "The NATS server refuses the login."},
	{"cluster-silent", "nats", Warning, "No agent announces itself in this cluster."},

	{"router-unreachable", "router", Error, "The router does not answer."},
	{"router-not-ready", "router", Error, "The router has no worker to send requests to."},
	{"agent-not-followed", "router", Error, "The router does not follow the agent."},
	{"agent-connection", "router", Error, "The router cannot reach an agent that it is to follow."},
	{"feed-degraded", "router", Warning, "A feed is not exact."},
	{"owner-ambiguous", "router", Error, "Two publishers have one name."},
	{"index-diverged", "router", Warning, "The index does not hold what the publisher announced."},
	{"worker-without-events", "router", Warning, "The router guesses what a worker has: nobody publishes its events."},
	{"server-not-ready", "router", Error, "A worker server gets no requests."},

	{"canary-unreachable", "canary", Error, "No front door answers."},
	{"canary-denied", "canary", Error, "The front door refuses the key."},
	{"canary-failed", "canary", Error, "The prompt was not answered."},
	{"canary-no-door", "canary", Error, "The prompt went to an inference server and past the router."},
	{"canary-tokens", "canary", Warning, "The router does not know the prompt's tokens exactly."},
	{"canary-other-router", "canary", Error, "The front door is not of this router."},
	{"canary-not-followed", "canary", Error, "The router follows no events of the worker that served the prompt."},
	{"canary-no-event", "canary", Error, "The worker published no event of the prompt, or none arrived."},
	{"canary-other-blocks", "canary", Error, "The worker's events name other blocks than the prompt's."},
	{"canary-elsewhere", "canary", Warning, "The same prompt went to another worker the second time."},
	{"canary-no-hit", "canary", Error, "The router expected no hit where the prompt's blocks are."},
	{"canary-unmeasured", "canary", Warning, "The engine does not say how many prompt tokens were cached."},
	{"canary-not-delivered", "canary", Error, "The engine computed a prompt again that its events say it has."},
}

// Causes returns every cause that doctor can find.
func Causes() []Cause { return slices.Clone(causes) }

// causeOf returns the cause of an id. It panics at an id without an entry, which any test of the
// check reaches.
func causeOf(id string) Cause {
	i := slices.IndexFunc(causes, func(c Cause) bool { return c.ID == id })
	if i < 0 {
		panic("BUG: no cause " + id)
	}
	return causes[i]
}
