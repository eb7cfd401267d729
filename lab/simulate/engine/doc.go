// Package engine models inference engines in virtual time: chunked prefill within a step's
// token budget, decode that holds blocks, preemption, and tiers with bandwidth and queues.
//
//	clock := &engine.Clock{}
//	node := engine.NewNode(clock, engine.NodeOptions{...})
//	e, err := engine.New(clock, node, engine.Options{Steps: engine.DefaultSteps(), ...})
//	e.Submit(&engine.Request{...}) // callbacks bring the tokens
//	clock.Run(until)
//
// A step takes what a recorded table says for its tokens, its prefill context and its decode
// context. Noise, padding of batches and stalls come on top. The table is data and not a formula
// of package estimate: steps.json says where its numbers come from.
//
// The device cache follows vLLM: blocks have reference counts, unreferenced blocks leave in the
// order of their last use, the end of a prompt first. Host memory and disk of a Node use the
// production eviction policy of package policy.
//
// Guarantees: a run is a pure function of its inputs. A block is referenced exactly as often as
// requests use it. The package reads no clock, does no I/O and starts no goroutine.
//
// Ownership: all parts of one Clock belong to one goroutine.
//
// Failure: New refuses options out of range. A request that can never fit is dropped and counted.
package engine
