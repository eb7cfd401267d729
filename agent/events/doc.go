// Package events publishes what a node holds.
package events
