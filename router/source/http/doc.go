// Package http brings the messages of agents over HTTP, for routers without NATS.
//
// Connect returns a Source that follows GET /v1/events of each agent in a list, and
// asks publishers over POST /v1/events/query. SetAgents changes the list.
//
// Each agent has a goroutine; Close waits for all. An agent that cannot be reached is
// tried again with growing pauses. Its publishers are announced as degraded.
package http
