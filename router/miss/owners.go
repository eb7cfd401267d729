package miss

import "github.com/blockyard-ai/blockyard/internal/kv"

// maxOwners bounds the owners of an ownerTable.
const maxOwners = 1 << 14

// ownerKey is an owner of the blocks of one model.
type ownerKey struct {
	model *History
	owner kv.Owner
}

// ownerTable numbers owners, so that a record is small. Beyond maxOwners a new owner takes the place
// of the oldest one, whose records then name nobody.
type ownerTable struct {
	ids  map[ownerKey]uint32
	list []ownerEntry // the owner with number n is at n % maxOwners
	next uint32
}

// ownerEntry is one owner. droppedAt is when it last lost all its blocks, as records have times; 0
// for never.
type ownerEntry struct {
	key       ownerKey
	id        uint32
	droppedAt int64
}

func newOwnerTable() ownerTable { return ownerTable{ids: make(map[ownerKey]uint32)} }

// id returns the number of an owner, and gives a new owner one.
func (t *ownerTable) id(key ownerKey) uint32 {
	if id, ok := t.ids[key]; ok {
		return id
	}
	id := t.next
	t.next++
	e := ownerEntry{key: key, id: id}
	if at := int(id % maxOwners); at < len(t.list) {
		delete(t.ids, t.list[at].key)
		t.list[at] = e
	} else {
		t.list = append(t.list, e)
	}
	t.ids[key] = id
	return id
}

// of returns the owner with a number, and false when another owner took its place.
func (t *ownerTable) of(id uint32) (ownerKey, bool) {
	if at := int(id % maxOwners); at < len(t.list) && t.list[at].id == id {
		return t.list[at].key, true
	}
	return ownerKey{}, false
}

// drop records when an owner lost all its blocks.
func (t *ownerTable) drop(key ownerKey, at int64) { t.list[t.id(key)%maxOwners].droppedAt = at }

// droppedAt returns when an owner last lost all its blocks, 0 for never.
func (t *ownerTable) droppedAt(key ownerKey) int64 {
	if id, ok := t.ids[key]; ok {
		return t.list[id%maxOwners].droppedAt
	}
	return 0
}
