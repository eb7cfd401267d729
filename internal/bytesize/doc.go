// Package bytesize parses and formats numbers of bytes as people write them: 64GiB,
// 1.5Ti, 500MB, 4096.
//
//	n, err := bytesize.Parse("1.5GiB") // n.String() == "1.5GiB"
//
// Flags, variables and configuration files of every command use it, and so do messages
// that show a size. An error quotes the text and names what is accepted.
package bytesize
