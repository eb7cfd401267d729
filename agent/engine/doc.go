// Package engine serves the engines of a node.
package engine
