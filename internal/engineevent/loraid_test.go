package engineevent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLoRANumberIsReadInEveryEncoding: engines that number an adapter without
// naming it must not be taken for ones that serve the base model.
func TestLoRANumberIsReadInEveryEncoding(t *testing.T) {
	for name, tc := range map[string]struct {
		value any
		want  int64
	}{
		"none": {nil, 0}, "zero": {0, 0}, "small": {3, 3}, "large": {uint64(1) << 62, 1 << 62}, "negative": {-5, -5},
		"no integer": {"adapter", 0}, "a list": {list{1, 2}, 0},
	} {
		want := stored(func(e *Event) { e.LoRAID = tc.want })
		for form, event := range map[string]any{
			"positional": list{"BlockStored", list{h1}, nil, list{1, 2, 3, 4}, 4, tc.value, "GPU"},
			"map": dict{
				"type", "BlockStored", "block_hashes", list{h1}, "token_ids", list{1, 2, 3, 4}, "block_size", 4,
				"lora_id", tc.value, "medium", "GPU",
			},
		} {
			got := decodeOne(t, event)
			if diff := cmp.Diff(want, got, visible); diff != "" {
				t.Errorf("%s, %s: (-want +got)\n%s", name, form, diff)
			}
			var again Batch
			if err := new(Decoder).Decode(AppendBatch(nil, &Batch{Events: []Event{got}}), &again); err != nil || again.Events[0].LoRAID != tc.want {
				t.Errorf("%s, %s: encoded and decoded: %+v, %v", name, form, again.Events, err)
			}
		}
	}
}
