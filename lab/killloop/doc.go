// Package killloop kills agents and engines while engines copy, again and again,
// and checks that nothing sealed is lost, that nobody is given a slot which
// somebody still writes, and that no load brings a wrong byte.
//
// # Processes
//
// Run is the harness. It starts one agent, engines and, once in each life of the
// agent, a checker; all are processes of their own (Serve is the main function of
// all but the agent), and all end with the harness. Kills are SIGKILL:
//
//	harness ── agent     killed at a random instant after it is ready, restarted
//	        ├─ engines   store and load all the time; killed now and then
//	        │   └─ hand  a worker of the engine, to which it leaves some copies
//	        └─ checker   looks up and reads what was sealed when the agent died
//
// An engine outlives agents: its copies go on in the mapped slots, and it says
// with RESUME to the next agent what it still holds. Its copies are slow on
// purpose, in pieces with pauses between them, so that kills hit their middle. A
// hand outlives its engine by the copies that it is at, as workers do.
//
// # What is checked
//
//   - sealed_lost. When the agent is dead, before the next one starts, both slot
//     tables are read as the files have them. Whatever is sealed then must be found
//     by LOOKUP from then on. The tiers are larger than what a run stores, so that
//     nothing is ever evicted; a run that comes near their size fails. Now and then
//     all processes are killed and the host tier is removed: then what was sealed
//     on disk must come back.
//   - foreign_writes. A writer covers its slot with a stamp of its own before it
//     puts the block there, and looks at every byte before it gives the slot back.
//   - double_grants. Writers tell the harness when a slot became theirs and when
//     they gave it up; nobody else may be granted it in between, and the generation
//     must rise. A killed engine holds its slots until it was killed, or until its
//     hand has written the last byte.
//   - wrong_bytes. The bytes of a block follow from its key. Every load is compared
//     with them after the generation word was found unchanged.
//   - dropped_slots and broken_pins. RESUMED keeps what RESUME names, and a pinned
//     slot keeps its generation.
//   - Leaks. When all engines are gone, nothing is granted, pinned or in quarantine,
//     and the states of each tier add up.
//
// A run in which no kill met a copy in flight or a sealed block, or in which
// nothing was resumed, proves nothing and fails.
//
// # Ownership, concurrency, failure
//
// Run owns the processes and directories that it makes and leaves none behind, but
// for the logs of a run that failed. Notes of all children go into one ledger,
// which is safe for concurrent use; times in it are of the kernel's monotonic
// clock, which all processes share. In an engine, one mutex guards what is held
// and by which link; it is never held during a copy or a call to the agent.
package killloop
