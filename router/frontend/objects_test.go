package frontend_test

import (
	"context"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
)

// pictures renders a chat to 13 tokens with an image in the tokens 5 and 6. The text names the image.
type pictures struct{}

func (pictures) Tokens(_ context.Context, _ string, r *openai.Request) (tokens.Prompt, error) {
	_, image, _ := strings.Cut(string(r.Chat), "image ")
	return tokens.Prompt{
		Tokens: []uint32{1, 2, 3, 4, 5, 9, 9, 8, 1, 2, 3, 4, 5}, Exact: true,
		Objects: []tokens.Object{{Hash: image[:1], Offset: 5, Length: 2}},
	}, nil
}

// A prompt with the same text and another image has the same blocks before the image alone.
func TestImagesArePartOfTheBlocks(t *testing.T) {
	b := newBench(t, frontend.Options{Tokens: pictures{}}, newServer(t, 1, answers(200, `{"choices":[]}`)))
	for _, c := range []struct{ image, predicted string }{{"a", "0"}, {"a", "12"}, {"b", "4"}, {"b", "12"}} {
		resp, body := b.post("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"image `+c.image+`"}]}`)
		if got := resp.Header.Get(frontend.PredictedHeader); resp.StatusCode != 200 || got != c.predicted {
			t.Errorf("image %s: status %d %s, predicted %q, want %s", c.image, resp.StatusCode, body, got, c.predicted)
		}
	}
}
