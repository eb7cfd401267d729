// Package nats brings the messages of publishers over NATS or a JetStream stream.
//
// Connect returns a Source. Source.Query asks a publisher window by window, so that
// no more of an answer is on its way than the server keeps for a connection. With
// Options.JetStream the Source reads a stream from a position on and stores
// snapshots in an object bucket. FollowLoads brings load reports, Source.Listen the
// requests of clients.
//
// Two goroutines of a Source bring frames; Close waits for both. A lost connection is
// a FrameDisconnected and is made anew without end. No type of the NATS library
// leaves the package.
package nats
