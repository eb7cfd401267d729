package consolidator

import (
	"encoding/binary"
	"fmt"
	"math"
)

// parseLive reads the parts of a live message: topic, u64 big-endian sequence
// number, payload.
func parseLive(parts [][]byte) (seq uint64, payload []byte, err error) {
	if len(parts) != 3 {
		return 0, nil, fmt.Errorf("live message: %d parts, want 3", len(parts))
	}
	if len(parts[1]) != 8 {
		return 0, nil, fmt.Errorf("live message: sequence number of %d bytes, want 8", len(parts[1]))
	}
	return binary.BigEndian.Uint64(parts[1]), parts[2], nil
}

// reply is one message of a replay.
type reply struct {
	seq     uint64
	payload []byte
	end     bool
}

// parseReply reads the parts of a replay message as a DEALER gets them: an empty
// delimiter, the topic (vLLM since 2026-07, not SGLang), u64 big-endian sequence
// number, payload. The end mark has the number -1 and no payload.
func parseReply(parts [][]byte) (reply, error) {
	n := len(parts)
	if n != 3 && n != 4 {
		return reply{}, fmt.Errorf("replay message: %d parts, want 3 or 4", n)
	}
	if len(parts[0]) != 0 {
		return reply{}, fmt.Errorf("replay message: delimiter of %d bytes, want 0", len(parts[0]))
	}
	if len(parts[n-2]) != 8 {
		return reply{}, fmt.Errorf("replay message: sequence number of %d bytes, want 8", len(parts[n-2]))
	}
	r := reply{seq: binary.BigEndian.Uint64(parts[n-2]), payload: parts[n-1]}
	r.end = r.seq == math.MaxUint64 && len(r.payload) == 0
	return r, nil
}

// replayRequest is the message that asks for the batches from start on.
func replayRequest(start uint64) [2][]byte {
	return [2][]byte{{}, binary.BigEndian.AppendUint64(nil, start)}
}
