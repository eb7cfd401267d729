// Package pools opens a pool for each namespace.
package pools
