// Package sharedcachetest is a shared cache in memory for tests of its clients.
package sharedcachetest
