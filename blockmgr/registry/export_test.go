package registry

import "unsafe"

// Bytes returns the memory that the registry takes, in bytes.
func (r *Registry) Bytes() uint64 {
	const pointer = unsafe.Sizeof(uintptr(0))
	return uint64(unsafe.Sizeof(*r) +
		uintptr(len(r.entries.chunks))*unsafe.Sizeof([chunkEntries]Entry{}) +
		uintptr(len(r.index.chunks))*unsafe.Sizeof([chunkSegments]segment{}) +
		uintptr(cap(r.entries.chunks)+cap(r.index.chunks))*pointer +
		uintptr(cap(r.index.dir))*unsafe.Sizeof(r.index.dir[0]) +
		uintptr(cap(r.index.states))*unsafe.Sizeof(segmentState{}))
}
