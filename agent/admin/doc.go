// Package admin is the HTTP API of an agent.
package admin
