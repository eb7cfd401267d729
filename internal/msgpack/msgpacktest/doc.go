// Package msgpacktest writes MessagePack from nested Go values, for tests that
// need messages of any shape:
//
//	b := msgpacktest.Encode(t, msgpacktest.Dict{"ts", 1.5, "events", msgpacktest.List{}})
package msgpacktest
