// Package split has one worker compute the prompt of a request and another one decode it: it
// says which requests are worth it, and edits the bodies of both.
//
//	if why := split.Unfit(parsed); why == "" && rule.Whole(len(tokens), cached) == "" {
//		body, err := openai.Apply(client, split.PrefillEdits(parsed, split.Yard.PrefillParams(parsed.Route, nil))...)
//		// ... the answer of the prefill worker comes ...
//		params, err := split.DecodeParams(answer, nil) // or split.AwaitParams
//	}
//
// The prefill worker computes one token, which nobody sees. Its KV reaches the decode worker
// in one of two ways, a Way:
//
//   - Yard: both workers keep their blocks in the pool of one node's agent. The decode
//     worker's connector waits until the agent has the blocks.
//   - Engines: vLLM's own hand-over. The prefill worker's connector says in its answer where
//     the blocks are, and the decode worker's connector fetches them.
//
// The package keeps no state but the workers that handed nothing over, in Lapses. It sends
// nothing: package frontend does. docs/front-door.md describes what an operator sees.
package split
