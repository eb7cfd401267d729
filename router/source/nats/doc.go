// Package nats brings the messages of publishers over NATS or a JetStream stream.
//
// Connect returns a Source. Source.Query asks a publisher for a window of chunks at a
// time, so that the answer never exceeds the server's buffer of the connection. With
// Options.JetStream the Source reads a stream from a position on and stores snapshots
// in an object bucket. FollowLoads brings load reports. Source.Listen brings the
// requests of clients.
//
// Two goroutines of a Source bring frames; Close waits for both. A lost connection is
// a FrameDisconnected. The Source reconnects without end. No type of the NATS library
// leaves the package.
package nats
