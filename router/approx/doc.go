// Package approx predicts which blocks workers hold from where requests were sent.
// It serves workers that publish no events, and bridges the time until the events
// of a decision arrive.
//
//	a, err := approx.New(approx.Options{TTL: 2 * time.Minute})
//	err = a.SetMember(worker, 0, true)
//	err = a.Record(worker, locals, sequence) // the prompt was sent to worker
//	err = a.Match(&predicted, locals)
//	approx.MergeMax(&matches, &predicted)    // the larger of events and prediction
//
// Each prompt block is expected on the worker's device for the TTL, and again for
// the TTL when it is sent there again. Expiries are rounded up to tenths of a
// second. The last blocks of a prompt expire first, so the rest is always a prefix.
//
// The predictions are an index of their own, so that blocks from events never
// expire. Options.MaxBlocks bounds them. Above the bound the blocks that expire
// soonest are pruned.
//
// Every method may be called from any goroutine. Match never waits. After Close
// every call returns ErrClosed.
package approx
