// Package waittest waits in tests for what another goroutine or process does. Until asks every 2 ms
// whether a condition holds, and fails the test after 30 s. A test that can run in a bubble of
// testing/synctest waits there instead.
package waittest
