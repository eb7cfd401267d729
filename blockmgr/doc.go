// Package blockmgr keeps the KV blocks of one node in host memory and on disk.
package blockmgr
