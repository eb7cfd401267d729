// Package fleet kills routers, agents and the NATS server while clients book requests, and checks that
// every router then has the same bookings.
//
//	err := fleet.Run(ctx, fleet.Options{Duration: time.Minute, Programs: programs, NATSServer: path})
//
//	clients ──HTTP, any router──► routers ──bookings over NATS──► routers
//	   └──► engines ──ZMQ──► agents ──NATS──► routers
//
// Each is a process. A client books a request at a random router, sends it to the chosen engine, and
// marks its first token, output blocks and its end at other random routers. Some requests stay booked. A
// client's ledger is the truth: a request lives from the answer to its booking until its end is answered,
// or until its router is killed or stopped.
//
// After a round the load stops. After five seconds of quiet each router lists its bookings. Every live
// request must be in each list once. docs/reliability.md names the faults.
//
// Run owns its processes and directories, and leaves only the logs of a failure. Faults happen on Run's
// goroutine. Each client has a goroutine, which ends before Run returns.
package fleet
