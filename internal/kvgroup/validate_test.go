package kvgroup_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

func TestValidateNamesTheBadField(t *testing.T) {
	good := kvgroup.Groups{
		{Kind: kvgroup.State, BlockSize: 544},
		{Kind: kvgroup.Full, BlockSize: 16},
		{Kind: kvgroup.Sliding, Window: 1024, BlockSize: 32},
		{Kind: kvgroup.Chunked, Window: 8192, BlockSize: 16},
	}
	if err := good.Validate(16); err != nil || good.Primary() != 1 || good.Align() != 544 {
		t.Fatalf("primary %d, align %d, %v", good.Primary(), good.Align(), err)
	}
	if err := (kvgroup.Groups)(nil).Validate(16); err != nil {
		t.Errorf("no groups: %v", err)
	}
	for want, change := range map[string]func(gs kvgroup.Groups) kvgroup.Groups{
		`groups[0] kind: "",`:         func(gs kvgroup.Groups) kvgroup.Groups { gs[0].Kind = ""; return gs },
		"groups[0] window: 5, want 0": func(gs kvgroup.Groups) kvgroup.Groups { gs[0].Window = 5; return gs },
		"groups[2] window: 0 ":        func(gs kvgroup.Groups) kvgroup.Groups { gs[2].Window = 0; return gs },
		"groups[3] window: 16777217 ": func(gs kvgroup.Groups) kvgroup.Groups { gs[3].Window = 1<<24 + 1; return gs },
		"groups[1] block_size: 0 ":    func(gs kvgroup.Groups) kvgroup.Groups { gs[1].BlockSize = 0; return gs },
		"groups[1] block_size: 24 is": func(gs kvgroup.Groups) kvgroup.Groups { gs[1].BlockSize = 24; return gs },
		"groups: none of kind":        func(gs kvgroup.Groups) kvgroup.Groups { return gs[2:] },
		"groups: 65, limit 64":        func(gs kvgroup.Groups) kvgroup.Groups { return slices.Repeat(gs[1:2], 65) },
		"groups: the least common multiple": func(gs kvgroup.Groups) kvgroup.Groups {
			gs[0].BlockSize, gs[1].BlockSize, gs[2].BlockSize = 16*1021, 16*1019, 16*1013
			return gs
		},
	} {
		if err := change(slices.Clone(good)).Validate(16); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
}
