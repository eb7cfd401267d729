package agent

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// Another engine may store the same blocks before the first one resumes. Its
// copies into the slots that it names go on all the same.
func TestResumedSlotsWhoseBlocksSomebodyStoredMeanwhileAreGivenToNobody(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	other := a.Scheduler(t, 2)
	agenttest.StorePrompt(t, other, proto.RequestID{ID: 1}, 2, grantedBlocks)
	c := a.Scheduler(t, 1)
	kept, err := c.Resume(t.Context(), f.welcome, f.held)
	if err != nil {
		t.Fatal(err)
	}
	f.finish(t) // the copies end
	r := proto.RequestID{ID: 9}
	if err := other.Open(r, "", "", "", agenttest.Prompt(3, 80)); err != nil {
		t.Fatal(err)
	}
	got, err := other.Store(t.Context(), r, 0, 80)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range got.Grants {
		for _, s := range f.held.Granted {
			if g.Extent == s.Extent && g.Index == s.Index {
				t.Errorf("slot %d, into which an engine copies, was granted to another", s.Index)
			}
		}
	}
	id := proto.RequestID{ID: proto.ResumedRequest}
	if err := c.Commit(t.Context(), id, kept.Granted); err != nil {
		t.Errorf("commit of blocks that are there already: %v", err)
	}
	if slices.ContainsFunc(kept.Granted, func(s proto.Slot) bool { return !slices.Contains(f.held.Granted, s) }) {
		t.Errorf("kept %+v of %+v", kept.Granted, f.held.Granted)
	}
	if err := c.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	a.WantFound(t, a.Scheduler(t, 1), 2, grantedBlocks)
}
