// Package refusal has the error that an engine is told: the body of an ERROR frame.
//
// A part of the agent that refuses what an engine asked for returns such an error, with
// a code of package proto, and the engine's connection answers with it:
//
//	return refusal.New(proto.CodeRange, "REGISTER offset %d: want a share of %d bytes", offset, bytes)
//
// Every other error is the agent's own. Package engine translates those of the block
// manager to codes; what it does not know becomes proto.CodeInternal.
package refusal
