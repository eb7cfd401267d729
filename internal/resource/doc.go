// Package resource is what the node lets us have: memory under its control
// groups, room in the file systems of the tiers, huge pages, locked memory. It
// answers two questions before anything is allocated: can these tiers work here
// (Check), and how much memory does that leave to the Go heap (MemoryLimit).
//
// # Guarantees
//
// Everything is a snapshot. Others allocate too, so that a size that passes
// Check may still be refused later; the allocation itself stays the judge. An
// error of Check means that the size cannot work as things are, a warning that
// it may not. What the kernel does not tell is 0 and is not checked.
//
// # Concurrency and ownership
//
// Functions read files and return values; nothing is kept. Check and MemoryLimit
// are pure. All may be called concurrently.
//
// # Failure
//
// A file that is absent means unknown: other kernels, containers and sandboxes
// hide some. A file that is there and makes no sense is an error that names it.
package resource
