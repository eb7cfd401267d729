package ttft

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	blockSize  = 64
	blockBytes = 8 << 20 // 64 tokens of 128 KiB
	// slowdown is by what part every answer that is being written slows computing down.
	slowdown = 0.02
	// stepTime is what every prefill costs besides its tokens, tokenTime how long one
	// token of an answer takes.
	stepTime  = 5 * time.Millisecond
	tokenTime = 15 * time.Millisecond
)

// hardware is what the machines of a run can do. The router is not told.
type hardware struct {
	prefill   []float64 // tokens per second of each worker
	perNode   int       // workers that share a node's pool
	hostBytes float64   // per second from host memory to a device
	diskBytes float64   // per second from a node's disk
	// Capacities in blocks.
	device, host, disk int
}

// node is a pool: host memory and a disk that reads one thing after the other.
type node struct {
	loop       *loop
	id         uint64
	hw         *hardware
	host, disk *cache

	free                time.Duration // when the disk has read all that it was asked for
	readBytes, readBusy float64       // since the last report
}

// read has the disk read n blocks and then calls do.
func (n *node) read(blocks int, do func()) {
	if blocks == 0 {
		do()
		return
	}
	bytes := float64(blocks) * blockBytes
	took := bytes / n.hw.diskBytes
	n.free = max(n.free, n.loop.now) + seconds(took)
	n.loop.at(n.free, func() {
		n.readBytes += bytes
		n.readBusy += took
		do()
	})
}

// report returns the load since the last one.
func (n *node) report() kvevent.LoadReport {
	r := kvevent.LoadReport{PublisherID: n.id, Owner: kv.PoolOwner(n.id), Pool: kvevent.PoolLoad{
		BlockBytes: blockBytes, DiskReadBytes: uint64(n.readBytes), DiskReadMicros: uint64(n.readBusy * 1e6),
		ReadQueue: uint64(max(0, n.free-n.loop.now).Seconds() * n.hw.diskBytes / blockBytes),
	}}
	n.readBytes, n.readBusy = 0, 0
	return r
}

// engine is a worker: it brings the blocks of a request to its device while it
// computes others, computes one prompt after the other, and writes answers beside
// that. A request starts when the device has room for all of its blocks.
type engine struct {
	loop   *loop
	id     kv.Worker
	rate   float64
	node   *node
	device *cache

	free                time.Duration // when the way to the device is free
	queue               []*job        // prompts that wait to be computed
	computing           bool
	waiting             int // requests that are not computed yet
	writing             int // answers
	held                int // blocks of those that are computed or answered
	copyBytes, copyBusy float64
}

// job is a prompt of which some tokens are to be computed.
type job struct {
	*prompt
	rest        int
	first, last func()
}

func (j *job) size() int { return len(j.locals) + 1 + j.output/blockSize }

// serve takes a prompt in. It calls first and last when the first and the last token
// of the answer are there.
func (e *engine) serve(p *prompt, first, last func()) {
	onDevice := e.device.Prefix(p.sequence)
	onHost := e.node.host.Prefix(p.sequence[onDevice:])
	onDisk := e.node.disk.Prefix(p.sequence[onDevice+onHost:])
	cached := onDevice + onHost + onDisk
	e.device.use(p, onDevice)
	e.waiting++
	e.node.read(onDisk, func() {
		e.node.host.use(p, cached)
		e.copy(onHost+onDisk, func() {
			e.queue = append(e.queue, &job{p, p.tokens - cached*blockSize, first, last})
			e.next()
		})
	})
}

// copy brings blocks to the device and then calls do.
func (e *engine) copy(blocks int, do func()) {
	if blocks == 0 {
		do()
		return
	}
	bytes := float64(blocks) * blockBytes
	took := bytes / e.node.hw.hostBytes
	e.free = max(e.free, e.loop.now) + seconds(took)
	e.loop.at(e.free, func() {
		e.copyBytes += bytes
		e.copyBusy += took
		do()
	})
}

func (e *engine) next() {
	if e.computing || len(e.queue) == 0 {
		return
	}
	j := e.queue[0]
	if e.writing > 0 && e.held+j.size() > e.node.hw.device {
		return
	}
	e.queue = e.queue[1:]
	e.computing = true
	e.waiting--
	e.held += j.size()
	e.compute(j)
}

// compute computes what no tier had. The blocks are then on the device, in host
// memory and on disk.
func (e *engine) compute(j *job) {
	took := float64(j.rest) / e.rate * (1 + slowdown*float64(e.writing))
	e.loop.at(e.loop.now+stepTime+seconds(took), func() {
		for _, c := range []*cache{e.device, e.node.host, e.node.disk} {
			c.use(j.prompt, len(j.locals))
		}
		e.computing = false
		e.writing++
		j.first()
		e.loop.at(e.loop.now+time.Duration(j.output)*tokenTime, func() {
			e.writing--
			e.held -= j.size()
			j.last()
			e.next()
		})
		e.next()
	})
}

func (e *engine) report() kvevent.LoadReport {
	r := kvevent.LoadReport{PublisherID: uint64(e.id.ID), Owner: kv.WorkerOwner(e.id), Worker: kvevent.WorkerLoad{
		Waiting: uint64(e.waiting), CopyBytes: uint64(e.copyBytes), CopyMicros: uint64(e.copyBusy * 1e6),
	}}
	e.copyBytes, e.copyBusy = 0, 0
	return r
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
