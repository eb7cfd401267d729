// Package proto is the connector protocol: how an inference engine and the
// node agent talk about blocks. It holds the frames and their bodies, the
// connection that carries them, the checks that the agent makes of everything
// it receives, and a Go client.
//
// # What travels
//
// Control travels over one Unix SEQPACKET socket: a message is a frame, a frame
// is a 16-byte header (Header) and a msgpack map (messages.go), at most MaxFrame
// bytes together. Block bytes never travel: the agent sends one file descriptor
// per extent beside EXTENT_READY, and both sides map the same memory.
//
// # Who may send what, and when
//
// The first frame of a connection is HELLO, and its answer WELCOME. A scheduler
// (RoleScheduler) then drives: RESUME at most once, OPEN and APPEND, and for
// open requests LOOKUP, CLAIM, STORE, COMMIT, ABORT, RELEASE and CLOSE, in any
// order; RESET when it holds nothing. A worker (RoleWorker) sends REGISTER and from
// then on listens: to EXTENT_READY and LOAD. Either may send STATS, and ends with
// BYE. The agent sends EXTENT_READY before any frame that names a slot of that
// extent, on the same connection; to schedulers EVICTED, where they asked for it,
// LIST_CACHED, where they said that they answer it with CACHED, and DRAIN before it
// stops.
//
// LOOKUP, CLAIM, STORE, COMMIT, BYE, HELLO, REGISTER, RESUME and RESET want an answer
// and carry a correlation other than 0; the answer, or ERROR, carries the same.
// The other frames carry 0 and get no answer, but an ERROR with correlation 0
// that names their request when they are refused; with another correlation they
// are refused. Answers to LOOKUPs that wait
// may overtake each other and other answers.
//
// # Ownership
//
// What LOOKUP reports is pinned for the session until RELEASE, CLOSE, the
// request's next OPEN or the session's end; what STORE grants belongs to the
// session until COMMIT, ABORT, CLOSE or the session's end. An engine must have no
// copy in flight to or from a slot when it gives the slot back. When the agent
// dies both stay the engine's: it names them to the next agent with RESUME, and
// settles what RESUMED gives back under the request id ResumedRequest.
//
// # Limits and failure
//
// Every list is bounded by a Max…PerFrame constant or MaxResumeSlots, every string
// by the Max…Len constants, nesting by maxDepth; Decode checks all of it, so a
// decoded message is inside its ranges. A message that is no frame, or a body
// that is no message, ends its connection after an ERROR; a frame that is well
// formed but refused does not. Sends have a deadline: a peer that does not read
// loses its own connection and delays nobody else.
//
// Conn.Send may be called from several goroutines, Conn.Receive from one.
package proto
