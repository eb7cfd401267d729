package frontend

import (
	"testing"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// A prompt of whole blocks is reported without its last block, but with an agent as a whole.
func TestPredictedOfWholeBlocks(t *testing.T) {
	for _, c := range []struct {
		source             string
		hits, prompt, want int
	}{
		{workers.FromFlag, 3, 96, 64},
		{workers.FromAgent, 3, 96, 96},
		{workers.FromFlag, 3, 97, 96},
		{workers.FromAgent, 3, 97, 96},
		{workers.FromAgent, 2, 96, 64},
		{workers.FromAgent, 9, 127, 96},
	} {
		b := &booking{worker: &workers.Worker{Source: c.source, Facts: workers.Facts{BlockSize: 32}}}
		b.match = router.Match{}
		b.match.Hits[0] = uint32(c.hits)
		if got := b.predicted(c.prompt); got != c.want {
			t.Errorf("%s, %d hits of %d tokens: %d predicted, want %d", c.source, c.hits, c.prompt, got, c.want)
		}
	}
}
