// Package msgpack reads MessagePack from memory without trusting it.
//
//	r := msgpack.NewReader(message)
//	for range r.Map() {
//		switch string(r.Text()) {
//		case "id":
//			id = r.Uint64()
//		default:
//			r.Skip()
//		}
//	}
//	r.End()
//	return id, r.Err
//
// Reads never panic, never read past the input and never recurse. Memory that a
// caller sizes by a length from Array or Map is bounded by the input. Codecs of
// the event packages use this reader because it allocates nothing per value.
package msgpack
