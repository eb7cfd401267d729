package proto

//go:generate go tool msgp -file lists.go -o lists_gen.go -tests=false -io=false

// ListCached asks a scheduler for the hashes of its device's prefix cache
// (LIST_CACHED). The agent sends it where HELLO said ListsCached, for what it
// cannot learn from the engine's events any more. The answer are CACHED frames.
type ListCached struct {
	// List is the agent's name for the list, not 0 and higher than the one before,
	// which nobody waits for any more.
	List uint64 `msg:"list"`
}

// Cached is a part of a list (CACHED). The list has every hash that was in the
// cache all the time from LIST_CACHED until Final; one that came or went meanwhile
// may or may not be in it.
type Cached struct {
	List uint64 `msg:"list"`
	// Hashes are packed; see AppendEngineHashes. They are the engine's own, as its
	// events have them; a hash may come more than once.
	Hashes []byte `msg:"hashes"`
	// Final ends the list.
	Final bool `msg:"final"`
	// Unavailable says that the engine cannot tell: the list is void and ends here.
	Unavailable bool `msg:"unavailable,omitempty"`
}
