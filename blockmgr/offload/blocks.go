package offload

import "fmt"

// deviceBlocks are the blocks that the engine has given a request, in the order
// of its tokens, with the retention priority of each. An engine names them in
// pieces that may repeat the end of what it named before.
type deviceBlocks struct {
	ids        []uint32
	priorities []uint32
	at         map[uint32]int // the index of each id
}

func (d *deviceBlocks) reset() {
	d.ids, d.priorities = d.ids[:0], d.priorities[:0]
	clear(d.at)
}

// overlap is how many of more the request has already: the longest run at the
// end of what it has that more begins with. The error says why more cannot
// follow; nothing is changed by either.
//
// Ids are unique in a request, so where more[0] stands tells where the run must
// begin: nothing is searched for.
func (d *deviceBlocks) overlap(more, priorities []uint32) (int, error) {
	if priorities != nil && len(priorities) != len(more) {
		return 0, fmt.Errorf("offload priorities: %d of them, want one for each of %d blocks", len(priorities), len(more))
	}
	if len(more) == 0 {
		return 0, nil
	}
	n := 0
	if from, known := d.at[more[0]]; known {
		n = len(d.ids) - from
		if n > len(more) {
			return 0, fmt.Errorf("offload blocks: %d to %d lie inside the request's %d, want a run that reaches their end", more[0], more[len(more)-1], len(d.ids))
		}
		for i, id := range d.ids[from:] {
			if more[i] != id {
				return 0, fmt.Errorf("offload blocks: %d follows %d, want %d as before", more[i], more[i-1], id)
			}
		}
	}
	if total := len(d.ids) + len(more) - n; total > MaxBlocks {
		return 0, fmt.Errorf("offload blocks: %d in a request, want at most %d", total, MaxBlocks)
	}
	return n, d.checkNew(more[n:])
}

// checkNew reports a block of more that the request has already, or that is in
// more twice.
func (d *deviceBlocks) checkNew(more []uint32) error {
	for _, id := range more {
		if i, known := d.at[id]; known {
			return fmt.Errorf("offload blocks: %d comes again, want it only as %d of the request", id, i)
		}
	}
	if len(more) < 2 {
		return nil
	}
	seen := make(map[uint32]struct{}, len(more))
	for _, id := range more {
		if _, twice := seen[id]; twice {
			return fmt.Errorf("offload blocks: %d is there twice", id)
		}
		seen[id] = struct{}{}
	}
	return nil
}

// add appends more, of which the first overlap are there already. Priorities
// that are given replace those given before; without any, new blocks have 0.
func (d *deviceBlocks) add(more, priorities []uint32, overlap int) {
	if d.at == nil {
		d.at = make(map[uint32]int, len(more))
	}
	if priorities != nil {
		copy(d.priorities[len(d.priorities)-overlap:], priorities)
	}
	for i, id := range more[overlap:] {
		d.at[id] = len(d.ids)
		d.ids = append(d.ids, id)
		priority := uint32(0)
		if priorities != nil {
			priority = priorities[overlap+i]
		}
		d.priorities = append(d.priorities, priority)
	}
}
