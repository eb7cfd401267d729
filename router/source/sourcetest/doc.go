// Package sourcetest has doubles of publishers, transports, agents and NATS servers,
// for tests of routers.
package sourcetest
