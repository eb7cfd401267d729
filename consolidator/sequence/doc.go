// Package sequence puts the batches of one engine into order: each batch is
// applied exactly once, or its loss is reported.
//
// A Sequencer is a state machine. It does no I/O, reads no clock and starts no
// goroutine. Its owner passes in frames, replies and the time, and carries out the
// replay requests:
//
//	s := sequence.New(cfg, target, &counters, now)
//	s.Live(now, seq, payload)             // a frame of the live stream
//	if start, due := s.Request(now); due { // ask the engine to replay from start
//	s.Replayed(now, seq, payload)         // a batch of that replay
//	s.ReplayEnd(now)                      // its end mark; or ReplayFailed
//	s.Tick(now)                           // when Wake says
//
// Target receives the result: Apply in order, Lost before batches that no replay can
// replay, Restarted when another incarnation of the engine counts from 0 again.
//
// How duplicates and restarts are told apart: a frame with an old number is a
// duplicate if its bytes are those that were applied. Otherwise the engine counts
// anew. The checksums of the last batches are remembered for that. A frame whose
// batch is forgotten is a duplicate if its number says that a replay brought it.
//
// Each replay asks for the last applied batch too and compares it. So a restart is
// found even if the new engine has overtaken the old number. An engine's last
// frames may be lost without a later frame that shows the gap: after a silence the
// Sequencer asks for what follows (tail probe). Without replay every gap is a loss,
// and a restart is seen only when the numbers go back.
//
// Bounds: live frames that wait for a replay are bounded in number and bytes. What
// does not fit becomes a gap of its own.
//
// Concurrency: a Sequencer belongs to one goroutine. Counters may be read by any.
//
// Failure: unreadable frames never move the sequence. A gap is given up after
// Config.Attempts replays in a row that brought nothing.
package sequence
