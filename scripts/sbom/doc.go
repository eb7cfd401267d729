// Command sbom writes the components of a Go binary to standard output, as a CycloneDX
// 1.6 document in JSON:
//
//	sbom -version v1.2.3 blockyard >blockyard.cdx.json
//
// All facts come from the binary. Its build information names the linked modules, with
// version and checksum, and the Go release of its standard library. Its ELF header names
// the shared libraries. Shared libraries have no version: the machine that runs the
// binary decides it.
//
// A module's SHA-256 is the sum of go.sum in hexadecimal: a hash over the module's
// files as golang.org/x/mod/sumdb/dirhash computes it, not over an archive.
//
// SOURCE_DATE_EPOCH, in seconds since 1970, is the time of the document. Without it the
// document has no time. The same binary gives the same document.
package main
