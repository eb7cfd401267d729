// Package bytesize reads and writes numbers of bytes as people write them: 64GiB,
// 1.5Ti, 500MB, 4096.
//
// Flags, variables and configuration documents of every command use it, and so do
// the messages that show a size.
package bytesize
