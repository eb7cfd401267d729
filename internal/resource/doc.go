// Package resource reads what the node allows: memory under its control groups, space
// in the file systems of the tiers, huge pages, locked memory. It answers two questions
// before anything is allocated.
//
//	limits, err := resource.Read("/")
//	host, err := resource.SpaceOf(hostDir)
//	warnings, err := resource.Check(limits, host, disk, want) // can these tiers work here?
//	n, ok := resource.LimitHeap(limits, want.Memory(host, disk))
//
// # Guarantees
//
// Everything is a snapshot. Others allocate too: a size that passes Check may still be
// refused later. An error of Check means that the size cannot work as things are, a
// warning that it may not. Zero means unknown or unlimited, and is not checked.
//
// # Concurrency and ownership
//
// Functions read files and return values; nothing is kept. Check and MemoryLimit are
// pure. LimitHeap changes a setting of the process. All may be called concurrently.
//
// # Failure
//
// An absent file means unknown: some kernels, containers and sandboxes hide files. A file
// with contents that make no sense is an error that names the file.
package resource
