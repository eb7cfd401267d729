package kvevent

import (
	"fmt"
	"iter"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// LoadReport says how busy an owner is. A publisher sends one a second. Each
// replaces the previous one, so a lost report costs nothing.
type LoadReport struct {
	// PublisherID is that of the owner's announcements.
	PublisherID uint64
	Owner       kv.Owner
	// Worker is valid for a worker, Pool for a pool.
	Worker WorkerLoad
	Pool   PoolLoad
}

// WorkerLoad is the load of a worker rank, as its engine reports it.
type WorkerLoad struct {
	DeviceBlocksTotal, DeviceBlocksUsed uint64
	// Running and Waiting are requests.
	Running, Waiting uint64
	// CopyBytes moved between host memory and the device since the last report, in
	// either direction. CopyMicros is the time in µs during which the workers
	// copied. Together they tell the speed of the path. Both are 0 when nothing was
	// copied.
	CopyBytes, CopyMicros uint64
}

// PoolLoad is the load of a pool, as its agent measures it.
type PoolLoad struct {
	// Bytes of the slots of a tier, and of the slots in use.
	HostBytesTotal, HostBytesUsed uint64
	DiskBytesTotal, DiskBytesUsed uint64
	// Bytes per second from and to the disk since the last report.
	ReadBytesPerSecond, WriteBytesPerSecond uint64
	// Blocks that wait to be read from the disk and to be written to it.
	ReadQueue, WriteQueue uint64
	// PromoteMicros is the mean time in µs from disk to host memory of a block
	// since the last report, 0 without any.
	PromoteMicros uint64
	// BlockBytes is the size of a block, 0 when unknown.
	BlockBytes uint64
	// DiskReadBytes were read from the disk since the last report. DiskReadMicros
	// is the time in µs during which at least one block was being read. Together
	// they tell the speed of the disk. Both are 0 when nothing was read.
	DiskReadBytes, DiskReadMicros uint64
}

// LoadSubject returns where publisher p reports its owner's load.
func LoadSubject(cluster string, p uint64) string {
	return fmt.Sprintf("blockyard.%s.load.%016x", cluster, p)
}

// AllLoadSubject returns a wildcard for every publisher's LoadSubject.
func AllLoadSubject(cluster string) string { return "blockyard." + cluster + ".load.*" }

// loadField is one unsigned number of a LoadReport and its key.
type loadField struct {
	key string
	v   *uint64
}

// fields returns the numbers with their keys.
func (w *WorkerLoad) fields() []loadField {
	return []loadField{
		{"device_blocks_total", &w.DeviceBlocksTotal}, {"device_blocks_used", &w.DeviceBlocksUsed},
		{"running_requests", &w.Running}, {"waiting_requests", &w.Waiting},
		{"copy_bytes", &w.CopyBytes}, {"copy_micros", &w.CopyMicros},
	}
}

// fields returns the numbers of a pool's load with their keys on the wire, in the order of encoding.
func (p *PoolLoad) fields() []loadField {
	return []loadField{
		{"host_bytes_total", &p.HostBytesTotal}, {"host_bytes_used", &p.HostBytesUsed},
		{"disk_bytes_total", &p.DiskBytesTotal}, {"disk_bytes_used", &p.DiskBytesUsed},
		{"read_bytes_per_second", &p.ReadBytesPerSecond}, {"write_bytes_per_second", &p.WriteBytesPerSecond},
		{"read_queue", &p.ReadQueue}, {"write_queue", &p.WriteQueue}, {"promote_micros", &p.PromoteMicros},
		{"block_bytes", &p.BlockBytes}, {"disk_read_bytes", &p.DiskReadBytes}, {"disk_read_micros", &p.DiskReadMicros},
	}
}

// fields returns the numbers of the report's owner.
func (r *LoadReport) fields() []loadField {
	if r.Owner.Kind == kv.OwnerPool {
		return r.Pool.fields()
	}
	return r.Worker.fields()
}

// Numbers yields the numbers of the report's owner, each with its key on the wire.
func (r *LoadReport) Numbers() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, f := range r.fields() {
			if !yield(f.key, *f.v) {
				return
			}
		}
	}
}

// AppendLoadReport appends r as a map with publisher_id, owner_kind, owner_id and
// dp_rank as in an announcement, and then, all unsigned, of a worker
//
//	device_blocks_total, device_blocks_used, running_requests, waiting_requests,
//	copy_bytes, copy_micros
//
// or of a pool
//
//	host_bytes_total, host_bytes_used, disk_bytes_total, disk_bytes_used,
//	read_bytes_per_second, write_bytes_per_second, read_queue, write_queue,
//	promote_micros, block_bytes, disk_read_bytes, disk_read_micros
func AppendLoadReport(dst []byte, r *LoadReport) []byte {
	fields := r.fields()
	dst = msgp.AppendMapHeader(dst, uint32(4+len(fields)))
	dst = appendUint(dst, "publisher_id", r.PublisherID)
	dst = appendTextPair(dst, "owner_kind", r.Owner.Kind.String())
	dst = appendUint(dst, "owner_id", r.Owner.ID)
	dst = appendUint(dst, "dp_rank", uint64(r.Owner.Rank))
	for _, f := range fields {
		dst = appendUint(dst, f.key, *f.v)
	}
	return dst
}

// DecodeLoadReport decodes a load report. Unknown keys are skipped, and absent
// numbers are 0. Errors are the lack of publisher_id, owner_kind or owner_id, and a
// value of a wrong kind. A worker's report has no pool numbers, and a pool's no
// worker numbers.
func DecodeLoadReport(b []byte) (LoadReport, error) {
	var r LoadReport
	known := append(r.Worker.fields(), r.Pool.fields()...)
	err := decodeMap(b, "load report", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "publisher_id":
			r.PublisherID = c.Uint64()
		case "owner_kind":
			r.Owner.Kind = readOwnerKind(c)
		case "owner_id":
			r.Owner.ID = c.Uint64()
		case "dp_rank":
			r.Owner.Rank = kv.DPRank(c.Uint(math.MaxUint32))
		default:
			readLoadField(c, key, known)
		}
	}, "publisher_id", "owner_kind", "owner_id")
	if err != nil {
		return LoadReport{}, err
	}
	if r.Owner.Kind == kv.OwnerPool {
		r.Worker = WorkerLoad{}
	} else {
		r.Pool = PoolLoad{}
	}
	return r, nil
}

// readLoadField reads the value of key into the field of known that has that key. An unknown key is
// skipped.
func readLoadField(c *msgpack.Reader, key []byte, known []loadField) {
	for _, f := range known {
		if string(key) == f.key {
			*f.v = c.Uint64()
			return
		}
	}
	c.Skip()
}
