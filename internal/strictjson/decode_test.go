package strictjson_test

import (
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/strictjson"
)

func TestErrorsNameTheFieldAndWhatIsWanted(t *testing.T) {
	for body, want := range map[string]string{
		`{"name":"a","count":1}`: "",
		`{"name":1}`:             "name: want a string, got number",
		`{"count":-1}`:           "count: want an integer in 0..4294967295, got number -1",
		`{"other":1}`:            `unknown field "other"`,
		`{"name":"a"`:            "body: not a whole JSON value",
		`{} {}`:                  "body: something follows the request",
	} {
		var v struct {
			Name  string `json:"name"`
			Count uint32 `json:"count"`
		}
		got := ""
		if err := strictjson.Decode(strings.NewReader(body), &v, "request", nil); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: error %q, want %q", body, got, want)
		}
	}
}
