// Package stress drives the block manager with streams of random operations under
// many configurations and faults, and compares every block that is served with the
// commit that it must be.
//
//	tally, err := stress.Run(ctx, stress.Options{Duration: 30 * time.Second, Out: os.Stdout})
//
// A stream is drawn from a seed before anything runs. Engines are granted slots, fill
// them, commit, look up, pin, die and come back. Agents end in good order, by a kill,
// or with the power. Between two agents bits flip in memory, on disk and in slot
// records. Each stream runs under each variant.
//
// The content of a block is a function of its key and of a nonce, the number of the
// operation that filled it. Every copy therefore says which commit it is. The ledger
// learns from the manager's events which copies exist, and knows which commits each
// of them may be. docs/reliability.md has these rules, and lists what else is
// checked.
//
// One goroutine drives a stream. The manager's goroutines make each run different: a
// seed selects the operations, the faults and the losses, but not the moments at
// which they meet.
//
// Run owns the directories that it makes and removes them. The first failure ends the
// run. Its error names seed, configuration, operation, and for a wrong byte the key
// and the commits. A stream that hangs cannot be ended: Run writes the stacks of all
// goroutines and returns without the stream.
package stress
