// Package killloop kills agents and engines while engines copy, again and again, and
// checks that no sealed block is lost, no slot has two writers and no load brings a
// wrong byte.
//
//	report, err := killloop.Run(ctx, killloop.Options{Kills: 50, Programs: programs, Child: command})
//
// Run starts one agent, engines and a checker, each a process. Serve is the main
// function of all but the agent:
//
//	Run ── agent     killed at a random instant after it is ready, then restarted
//	    ├─ engines   store and load all the time; killed now and then
//	    │   └─ mover a second process of an engine that makes some of its copies
//	    └─ checker   looks up and reads what was sealed when the agent died
//
// An engine outlives agents: its copies go on in the mapped slots, and RESUME tells
// the next agent about them. Copies are slow on purpose, so that kills hit their
// middle. A mover outlives a killed engine by the copy that it makes.
//
// Children write notes (note) to their output. The ledger collects the notes and
// compares them with the slot tables that a dead agent left. Faults are what must not
// happen; docs/reliability.md explains each. A run in which no kill met a copy in
// flight or a sealed block, or in which nothing was resumed, proves nothing and fails.
//
// Run leaves no process and no file but the logs of a failure. The ledger is safe for
// concurrent use. In an engine one mutex guards what is held and by which link. The
// mutex is never held during a copy or a call to the agent.
package killloop
