package mirror

// dropReason says why blocks of an engine event were not applied.
type dropReason uint8

const (
	dropUnknownParent dropReason = iota
	dropUnknownBlock
	dropHashConflict
	dropBlockSize
	dropTokenCount
	dropPlaceholder
	dropUnknownMedium
	dropRemote
	dropUnknownLocality
	dropOwnership
	dropGroup
	dropSaltConflict
	dropForeignRank
	dropTableFull
	dropUnnamedLoRA
	dropNamesFull
	dropTooManyCopies
	numDropReasons
)

// String is the reason's name in RankStats.Dropped.
func (r dropReason) String() string {
	switch r {
	case dropUnknownParent:
		return "unknown_parent"
	case dropUnknownBlock:
		return "unknown_block"
	case dropHashConflict:
		return "hash_conflict"
	case dropBlockSize:
		return "block_size"
	case dropTokenCount:
		return "token_count"
	case dropPlaceholder:
		return "placeholder"
	case dropUnknownMedium:
		return "unknown_medium"
	case dropRemote:
		return "remote"
	case dropUnknownLocality:
		return "unknown_locality"
	case dropOwnership:
		return "ownership"
	case dropGroup:
		return "group"
	case dropSaltConflict:
		return "salt_conflict"
	case dropForeignRank:
		return "foreign_rank"
	case dropTableFull:
		return "table_full"
	case dropUnnamedLoRA:
		return "unnamed_lora"
	case dropNamesFull:
		return "names_full"
	case dropTooManyCopies:
		return "too_many_copies"
	}
	return "unknown"
}

// losesState reports whether blocks dropped for this reason are blocks that the
// engine holds and that we should know: the stream is then no longer exact. The
// other reasons are blocks that no request can be served from, or removals of
// what we never held.
func (r dropReason) losesState() bool {
	switch r {
	case dropUnknownParent, dropHashConflict, dropTokenCount, dropSaltConflict, dropForeignRank,
		dropTableFull, dropUnnamedLoRA, dropNamesFull, dropTooManyCopies:
		return true
	}
	return false
}
