// Package cluster starts the processes of an event path on one machine, and talks to
// them: a NATS server, agents, simulated engines and a router, each the program
// that is deployed, each killed and started again at the caller's will.
//
//	engine ──ZMQ──► agent ──NATS──► router
//
// A Rig owns its directories and its processes. Each process is in a group of
// its own, so that a Ctrl-C reaches the caller alone, and the kernel kills it
// should the caller die. Close kills what is left and removes the directories;
// the logs of a run that failed stay if asked for.
//
// A Rig and its processes are for one goroutine, but for the HTTP calls, which
// any number may make at a time.
package cluster
