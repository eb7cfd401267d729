// Command sbom lists what a Go binary is made of, as a CycloneDX 1.6 document in
// JSON on standard output:
//
//	sbom -version v1.2.3 blockyard >blockyard.cdx.json
//
// The binary itself is the source: its build information names every module that
// was linked in, with version and checksum, and the Go release whose standard
// library it contains; its ELF header names the shared libraries that it loads when
// it starts. Those have no version here, because the machine that runs the binary
// decides it.
//
// A module's SHA-256 is the sum of go.sum in hexadecimal: a hash over the module's
// files as golang.org/x/mod/sumdb/dirhash computes it, not over an archive.
//
// SOURCE_DATE_EPOCH, seconds since 1970, is the time of the document; without it the
// document has none. The same binary gives the same document.
package main
