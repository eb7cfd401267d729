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
	dropGroupReport
	dropUnplaced
	numDropReasons
)

// dropReasons has for each reason its name in Counters.Dropped and losesState. losesState
// is true when requests can hit the dropped blocks in the engine: then the stream lacks
// blocks and is degraded. The other reasons are about blocks that no request can hit, or
// about removals of unknown blocks.
var dropReasons = [numDropReasons]struct {
	name       string
	losesState bool
}{
	dropUnknownParent:   {"unknown_parent", true},
	dropUnknownBlock:    {"unknown_block", false},
	dropHashConflict:    {"hash_conflict", true},
	dropBlockSize:       {"block_size", false},
	dropTokenCount:      {"token_count", true},
	dropPlaceholder:     {"placeholder", false},
	dropUnknownMedium:   {"unknown_medium", false},
	dropRemote:          {"remote", false},
	dropUnknownLocality: {"unknown_locality", false},
	dropOwnership:       {"ownership", false},
	dropGroup:           {"group", false},
	dropSaltConflict:    {"salt_conflict", true},
	dropForeignRank:     {"foreign_rank", true},
	dropTableFull:       {"table_full", true},
	dropUnnamedLoRA:     {"unnamed_lora", true},
	dropNamesFull:       {"names_full", true},
	dropTooManyCopies:   {"too_many_copies", true},
	dropGroupReport:     {"group_report", false},
	dropUnplaced:        {"unplaced", true},
}
