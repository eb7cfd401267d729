// Package zmqpub publishes an engine's event batches over ZMQ as vLLM does, with
// replays, and leaves out frames on purpose where a test wants gaps.
//
//	p, err := zmqpub.New(zmqpub.Options{BufferSteps: 1000, Drop: zmqpub.ChooseDrops(2, seed, worker)})
//	defer p.Close()
//	p.Publish(payload)
//
// One goroutine owns the sockets. It waits and never polls: Publish wakes it through
// an inproc pair. A batch that waits for a full queue waits in Publish, as in vLLM.
package zmqpub
