package proto

import (
	"encoding/binary"
	"fmt"
)

// Type is the type of a frame. The numbers never change.
type Type uint16

// Frame types. S is the engine's scheduler, W one of its workers, A the agent.
const (
	TypeHello       Type = 1  // S,W→A: who I am; answered by TypeWelcome
	TypeWelcome     Type = 2  // A→S,W
	TypeRegister    Type = 3  // W→A: geometry of the worker's KV; answered by TypeOK
	TypeExtentReady Type = 4  // A→S,W: map this extent; carries one file descriptor
	TypeOK          Type = 5  // A→S,W: done, nothing to report
	TypeError       Type = 6  // A→S,W: refused; see Error
	TypeOpen        Type = 16 // S→A: a request and the first piece of its tokens
	TypeAppend      Type = 17 // S→A: more tokens
	TypeLookup      Type = 18 // S→A: which blocks are resident; answered by TypeLookupHit
	TypeLookupHit   Type = 19 // A→S
	TypeClaim       Type = 20 // S→A: load these pinned blocks; answered by TypeClaimed
	TypeClaimed     Type = 21 // A→S
	TypeStore       Type = 22 // S→A: offer of these blocks; answered by TypeGrant
	TypeGrant       Type = 23 // A→S
	TypeCommit      Type = 24 // S→A: granted slots are filled; answered by TypeOK
	TypeAbort       Type = 25 // S→A: granted slots will not be filled
	TypeRelease     Type = 26 // S→A: pins no longer needed
	TypeLoad        Type = 27 // A→W: copy these slots into these device blocks
	TypeClose       Type = 28 // S→A: the request has ended
	TypeBye         Type = 29 // S,W→A: orderly end of the session; answered by TypeOK
	TypeResume      Type = 30 // S→A: slots that are still in use from an earlier agent
	TypeResumed     Type = 31 // A→S
	TypeEvicted     Type = 32 // A→S: these blocks have left a tier; a hint
	TypeReset       Type = 33 // S→A: drop the blocks of the namespace; answered by TypeOK
	TypeStats       Type = 34 // S,W→A: the connector's counters
	TypeDrain       Type = 35 // A→S: the agent is about to stop
	TypeListCached  Type = 36 // A→S: request for the hashes in the device's prefix cache
	TypeCached      Type = 37 // S→A: a part of that list
	TypeFit         Type = 38 // S→A: how long a prefix all KV groups have; answered by TypeFitted
	TypeFitted      Type = 39 // A→S
)

var typeNames = map[Type]string{
	TypeHello: "HELLO", TypeWelcome: "WELCOME", TypeRegister: "REGISTER", TypeExtentReady: "EXTENT_READY",
	TypeOK: "OK", TypeError: "ERROR", TypeOpen: "OPEN", TypeAppend: "APPEND", TypeLookup: "LOOKUP",
	TypeLookupHit: "LOOKUP_HIT", TypeClaim: "CLAIM", TypeClaimed: "CLAIMED", TypeStore: "STORE", TypeGrant: "GRANT",
	TypeCommit: "COMMIT", TypeAbort: "ABORT", TypeRelease: "RELEASE", TypeLoad: "LOAD", TypeClose: "CLOSE",
	TypeBye: "BYE", TypeResume: "RESUME", TypeResumed: "RESUMED",
	TypeEvicted: "EVICTED", TypeReset: "RESET", TypeStats: "STATS", TypeDrain: "DRAIN",
	TypeListCached: "LIST_CACHED", TypeCached: "CACHED", TypeFit: "FIT", TypeFitted: "FITTED",
}

// String returns the frame's name in the documentation, such as "LOOKUP".
func (t Type) String() string {
	if s, ok := typeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("TYPE(%d)", uint16(t))
}

// WantsAnswer reports whether a client's frame of type t is answered. Such a frame
// carries a correlation other than 0. Every other frame carries 0.
func (t Type) WantsAnswer() bool {
	switch t {
	case TypeHello, TypeRegister, TypeLookup, TypeClaim, TypeStore, TypeCommit, TypeBye, TypeResume, TypeReset, TypeFit:
		return true
	}
	return false
}

const (
	// Magic starts every frame: "BYD1" read as a little-endian u32.
	Magic uint32 = 0x31445942
	// HeaderSize is the size of a frame's header in bytes.
	HeaderSize = 16
	// MaxFrame is the size of the largest frame, header included.
	MaxFrame = 32 << 10
	// VersionMajor and VersionMinor are the protocol's version. The majors of both
	// sides must be equal. The lower minor applies.
	VersionMajor = 1
	VersionMinor = 4
	// MaxBlocksPerFrame bounds the blocks that one frame names, so that every list
	// of slots fits a frame. Longer runs take several frames.
	MaxBlocksPerFrame = 1024
	// MaxTokensPerFrame bounds the tokens that one OPEN or APPEND carries.
	MaxTokensPerFrame = 7168
	// MaxHashesPerFrame bounds the blocks that one EVICTED names.
	MaxHashesPerFrame = 2048
	// MaxListedPerFrame bounds the hashes that one CACHED carries.
	MaxListedPerFrame = 4000
	// MaxListed bounds the hashes of a whole list, in all its CACHED frames.
	MaxListed = 16 << 20
)

// Role is the role of a connection.
type Role string

const (
	// RoleScheduler opens requests, looks up, claims and stores.
	RoleScheduler Role = "scheduler"
	// RoleWorker maps extents and receives LOAD.
	RoleWorker Role = "worker"
)

// Error codes.
const (
	CodeMalformed   = "malformed"    // the frame could not be decoded
	CodeUnsupported = "unsupported"  // unknown frame type or version
	CodeRange       = "out_of_range" // a field is outside its range
	CodeState       = "bad_state"    // the frame does not fit the session's or request's state
	CodeNotFound    = "not_found"    // no such request or generation
	CodeLimit       = "limit"        // a limit of the session or of the agent is reached
	CodeNamespace   = "namespace"    // the agent does not keep this namespace, or it is not the session's
	CodeDenied      = "denied"       // the peer is not allowed
	CodeInternal    = "internal"     // the agent failed
)

// Header is the fixed start of a frame, little-endian:
//
//	u32 magic | u16 type | u16 flags (0) | u32 correlation | u32 body length
//
// A frame that wants an answer (Type.WantsAnswer) has a correlation other than 0,
// which the answer repeats. Other frames, and those that the agent sends on its
// own, have 0. No flag is defined. A frame with a flag is malformed, because the
// flag may change its meaning.
type Header struct {
	Type  Type
	Flags uint16
	Corr  uint32
	Body  uint32
}

// AppendHeader appends the header's 16 bytes to b.
func AppendHeader(b []byte, h Header) []byte {
	b = binary.LittleEndian.AppendUint32(b, Magic)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Type))
	b = binary.LittleEndian.AppendUint16(b, h.Flags)
	b = binary.LittleEndian.AppendUint32(b, h.Corr)
	return binary.LittleEndian.AppendUint32(b, h.Body)
}

// ParseFrame returns the header and the body of the frame in b, one received message. The body is
// part of b. The error names the part of the header that is wrong.
func ParseFrame(b []byte) (Header, []byte, error) {
	if len(b) < HeaderSize {
		return Header{}, nil, fmt.Errorf("frame of %d bytes: want at least %d", len(b), HeaderSize)
	}
	if len(b) > MaxFrame {
		return Header{}, nil, fmt.Errorf("frame of %d bytes: want at most %d", len(b), MaxFrame)
	}
	if m := binary.LittleEndian.Uint32(b); m != Magic {
		return Header{}, nil, fmt.Errorf("frame magic %#08x: want %#08x", m, Magic)
	}
	h := Header{
		Type:  Type(binary.LittleEndian.Uint16(b[4:])),
		Flags: binary.LittleEndian.Uint16(b[6:]),
		Corr:  binary.LittleEndian.Uint32(b[8:]),
		Body:  binary.LittleEndian.Uint32(b[12:]),
	}
	if h.Flags != 0 {
		return Header{}, nil, fmt.Errorf("frame %s flags: %#x, want 0", h.Type, h.Flags)
	}
	if int(h.Body) != len(b)-HeaderSize {
		return Header{}, nil, fmt.Errorf("frame %s: body length %d, but %d bytes follow the header", h.Type, h.Body, len(b)-HeaderSize)
	}
	return h, b[HeaderSize:], nil
}
