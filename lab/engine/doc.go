// Package engine is a simulated inference engine without a model. It has every part of a
// prefix-caching engine that a cache manager sees.
//
//	e, err := engine.New(engine.Options{Worker: w, Namespace: ns, AgentSocket: path}, log)
//	err = e.Run(ctx, func(at engine.Endpoints) { ... })
//
// Real are the block pool, the engine's block hashes, device memory, the event
// publisher with its replays, and the connector protocol. Every loaded byte is
// checked. Simulated are the time of a step, the values of the KV cache and the
// output tokens. A value is a function of the block that it belongs to, so that a
// wrong byte is recognised.
//
//	HTTP handlers ──post──► core ◄──post── conversations ◄── link (one agent session)
//	                         │ owns pool, requests             └─ copier: slot → device block
//	                         └──payloads──► zmqpub.Publisher
//
// core is one goroutine. It owns the pool and every request; other goroutines post
// functions to it. It runs steps as vLLM does. A conversation is one attempt at one
// request with the agent, in a goroutine of its own; the number of conversations and
// the queue of each are bounded. Only the copier writes loaded bytes.
//
// Without an agent the engine serves on. When its agent dies, copies under way end,
// because their slots stay the engine's, and everything else is recomputed. The
// engine then resumes with the next agent. A block with a wrong byte is counted,
// recomputed and never served. A request that finds the queue full is refused with
// 503. Shutdown drains for at most two seconds.
package engine
