// Package socket makes the socket of the engines, and decides which users can open it.
//
//	l, err := socket.Listen("/run/blockyard/agent.sock", false, log)
//	c, err := l.AcceptUnix()
//	err = l.Open([]uint32{1000}, true, log)
//	err = l.Close()
//
// # Guarantees
//
// The socket and the directories that Listen makes are for the agent's user and group, or for every user.
// The umask does not matter. The modes decide who can connect, and the server who is served: it compares
// the peer's user with its list. A directory that was there before keeps its mode.
//
// # Ownership
//
// The caller owns the Listener and closes it. Closing removes the socket and leaves the directories.
//
// # Failure
//
// Open changes nothing when it fails. It fails when only the owner of an existing directory can pass the
// directory, and an allowed user is another one.
package socket
