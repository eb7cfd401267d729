// Package residencytest checks streams in tests: a sink that replays events as a
// consumer does, comparisons of a stream with what its events said, and random
// forests of blocks.
package residencytest
