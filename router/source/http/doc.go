// Package http brings the messages of agents over HTTP, for routers without NATS.
//
// Connect returns a Source that follows GET /v1/events of each agent in a list, and
// asks publishers over POST /v1/events/query. SetAgents changes the list.
//
// Each agent has a goroutine; Close waits for all. The goroutine reconnects to its agent
// with growing pauses. The publishers of a lost agent are announced as degraded.
package http
