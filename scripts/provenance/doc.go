// Command provenance writes to standard output how the files of a directory were built: an in-toto
// statement with the predicate SLSA provenance v1, in JSON.
//
//	provenance -version v1.2.3 -commit 0123456789abcdef0123456789abcdef01234567 -builder https://ci.example/builders/1 dist/v1.2.3
//
// The subjects are the files with their SHA-256. The statement names the source with its commit, the
// Go toolchain, which is the one that built this command, and the builder. The caller says who
// the builder is, and signs the statement: unsigned, it is worth as much as the place where it lies.
// docs/release.md specifies the build type.
//
// The statement has no times: the same files, commit, toolchain and builder give the same statement.
package main
