// Package refusal has the error that refuses an engine's request: the body of an ERROR frame.
//
// Parts of the agent return such an error, with a code of package proto. The engine's
// connection answers with it:
//
//	return refusal.New(proto.CodeRange, "REGISTER offset %d: want a share of %d bytes", offset, bytes)
//
// Every other error is the agent's own. Package engine translates the block manager's errors
// to codes; an unknown error becomes proto.CodeInternal.
package refusal
