package workload

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMooncakeTraceIsReadAsRequests(t *testing.T) {
	requests, err := ReadMooncakeFile("testdata/mooncake.jsonl", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(requests) != 4 {
		t.Fatalf("%d requests, want 4", len(requests))
	}
	for i, want := range []struct {
		id            string
		at            time.Duration
		input, output int
	}{
		{"l1", 0, 1300, 7},
		{"l3", 0, 1536, 1},
		{"l4", 1250 * time.Millisecond, 1024, 40},
		{"l5", 2500 * time.Millisecond, 1, 2},
	} {
		r := &requests[i]
		if r.ID != want.id || r.At != want.at || r.NewTokens() != want.input || r.OutputTokens != want.output || r.Session != i {
			t.Errorf("request %d is %+v, want %+v", i, *r, want)
		}
	}
}

func TestEqualHashIDsGiveEqualTokensAndPrefixes(t *testing.T) {
	requests, err := ReadMooncakeFile("testdata/mooncake.jsonl", 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := requests[0].Prompt(nil), requests[1].Prompt(nil), requests[2].Prompt(nil)
	if len(a) != 1300 || len(b) != 1536 || len(c) != 1024 {
		t.Fatalf("prompts of %d, %d and %d tokens, want 1300, 1536 and 1024", len(a), len(b), len(c))
	}
	if !slices.Equal(a, b[:len(a)]) {
		t.Error("a prompt whose last block is cut is not a prefix of the one with the whole block")
	}
	if !slices.Equal(a[:512], c[:512]) {
		t.Error("prompts that share their first id do not share their first 512 tokens")
	}
	if slices.Equal(a[512:1024], c[512:1024]) {
		t.Error("blocks of different ids have equal tokens")
	}
}

func TestTraceLimitStopsReading(t *testing.T) {
	const trace = `{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}
this line is never read`
	requests, err := ReadMooncake(strings.NewReader(trace), "x", 1)
	if err != nil || len(requests) != 1 {
		t.Errorf("%d requests, error %v", len(requests), err)
	}
}

func TestBadTraceLineIsNamedWithFieldAndValue(t *testing.T) {
	const good = `{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}` + "\n"
	for _, c := range []struct{ line, want string }{
		{`{"timestamp":0,`, `t.jsonl:2: want a JSON object, got "{\"timestamp\":0,"`},
		{`[1,2]`, `t.jsonl:2: want a JSON object, got "[1,2]"`},
		{`{"input_length":5,"output_length":1,"hash_ids":[1]}`, `t.jsonl:2: field timestamp: missing`},
		{`{"timestamp":"noon","input_length":5,"output_length":1,"hash_ids":[1]}`, `field timestamp: "\"noon\"" is not an integer`},
		{`{"timestamp":-3,"input_length":5,"output_length":1,"hash_ids":[1]}`, `field timestamp: -3 is not in 0..`},
		{`{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}`, `field input_length: 0 is not in 1..4194304`},
		{`{"timestamp":0,"input_length":1.5,"output_length":1,"hash_ids":[1]}`, `field input_length: "1.5" is not an integer`},
		{`{"timestamp":0,"input_length":5,"output_length":null,"hash_ids":[1]}`, `field output_length: "null" is not an integer`},
		{`{"timestamp":0,"input_length":5,"output_length":1}`, `field hash_ids: missing`},
		{`{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":7}`, `field hash_ids: "7" is not a list of integers`},
		{`{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[7]}`, `field hash_ids: 1 ids, but input_length 513 makes 2 blocks of 512 tokens`},
		{`{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[-7]}`, `field hash_ids[0]: "-7" is not an integer from 0 to 2^64-1`},
		{strings.Repeat("x", maxTraceLine+1), `t.jsonl:2: line is longer than 1048576 bytes`},
	} {
		_, err := ReadMooncake(strings.NewReader(good+c.line), "t.jsonl", 0)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("line %.80s: error %v, want one line with %s", c.line, err, c.want)
		}
	}
	if _, err := ReadMooncake(strings.NewReader("\n\n"), "empty.jsonl", 0); err == nil || err.Error() != "empty.jsonl: no requests in it" {
		t.Errorf("empty trace: error %v", err)
	}
}

func FuzzMooncakeLine(f *testing.F) {
	f.Add(`{"timestamp":0,"input_length":5,"output_length":1,"hash_ids":[1]}`)
	f.Add(`{"timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[1,18446744073709551615]}`)
	f.Add(`{"timestamp":9e9,"input_length":"5","output_length":[],"hash_ids":{}}`)
	f.Fuzz(func(t *testing.T, line string) {
		requests, err := ReadMooncake(strings.NewReader(line), "fuzz", 0)
		if (err == nil) == (len(requests) == 0) {
			t.Fatalf("%d requests with error %v", len(requests), err)
		}
		for i := range requests {
			if n := requests[i].NewTokens(); n < 1 || n > maxTraceTokens {
				t.Fatalf("a request of %d tokens", n)
			}
		}
	})
}
