package engine

import (
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// NodeOptions describe the tiers of a node. A node of 0 blocks has none.
type NodeOptions struct {
	ID uint64
	// HostBlocks and DiskBlocks are the capacities.
	HostBlocks, DiskBlocks int
	BlockBytes             float64
	// DiskBytes is what the disk reads in a second.
	DiskBytes float64
	// Host and Disk are told what the tiers store and remove.
	Host, Disk Sink
}

// Node is what the engines of a machine share: host memory and a disk that reads one thing after
// the other.
type Node struct {
	clock      *Clock
	options    NodeOptions
	host, disk *tier
	// DiskFactor multiplies the speed of the disk; scenarios change it.
	DiskFactor float64
	// free is when the disk has read everything that it was asked for.
	free      time.Duration
	readBytes float64
	readBusy  float64 // seconds
	// Moved are the bytes moved in the run, by direction.
	Moved Moved
}

// Moved are bytes that were moved. Network has those that engines got from other engines.
type Moved struct{ DiskRead, DiskWritten, HostToDevice, DeviceToHost, Network float64 }

// NewNode returns a node with empty tiers.
func NewNode(clock *Clock, o NodeOptions) *Node {
	return &Node{clock: clock, options: o, DiskFactor: 1, host: newTier(o.HostBlocks, o.Host), disk: newTier(o.DiskBlocks, o.Disk)}
}

// ID returns the id of the node's pool.
func (n *Node) ID() uint64 { return n.options.ID }

// hits returns how many blocks of a text follow on host memory and then on disk.
func (n *Node) hits(numbers []uint32) (host, disk int) {
	host = n.host.blocks.prefix(numbers)
	return host, n.disk.blocks.prefix(numbers[host:])
}

// readSeconds returns how long the disk takes to read blocks, its queue included.
func (n *Node) readSeconds(blocks int) float64 {
	if blocks == 0 {
		return 0
	}
	return max(0, n.free-n.clock.now).Seconds() + float64(blocks)*n.options.BlockBytes/(n.options.DiskBytes*n.DiskFactor)
}

// read has the disk read blocks and then calls do.
func (n *Node) read(blocks int, do func()) {
	if blocks == 0 {
		do()
		return
	}
	bytes := float64(blocks) * n.options.BlockBytes
	took := bytes / (n.options.DiskBytes * n.DiskFactor)
	n.free = max(n.free, n.clock.now) + seconds(took)
	n.clock.At(n.free, func() {
		n.readBytes += bytes
		n.readBusy += took
		n.Moved.DiskRead += bytes
		do()
	})
}

// keep stores computed blocks in host memory and writes them to the disk.
func (n *Node) keep(c Chain) {
	if n.options.HostBlocks > 0 {
		n.Moved.DeviceToHost += float64(n.host.use(c)) * n.options.BlockBytes
	}
	if n.options.DiskBlocks > 0 {
		n.Moved.DiskWritten += float64(n.disk.use(c)) * n.options.BlockBytes
	}
}

// promote marks the blocks of a chain as used, and brings them into host memory.
func (n *Node) promote(c Chain) {
	if n.options.HostBlocks > 0 {
		n.host.use(c)
	}
}

// Report returns the load of the node since the last report.
func (n *Node) Report() kvevent.LoadReport {
	r := kvevent.LoadReport{PublisherID: n.options.ID, Owner: kv.PoolOwner(n.options.ID), Pool: kvevent.PoolLoad{
		BlockBytes: uint64(n.options.BlockBytes), DiskReadBytes: uint64(n.readBytes), DiskReadMicros: uint64(n.readBusy * 1e6),
		ReadQueue: uint64(math.Round(max(0, n.free-n.clock.now).Seconds() * n.options.DiskBytes * n.DiskFactor / n.options.BlockBytes)),
	}}
	n.readBytes, n.readBusy = 0, 0
	return r
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
