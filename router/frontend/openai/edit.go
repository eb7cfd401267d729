package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Edit replaces, adds or removes one top-level member of a body.
type Edit struct {
	Key   string
	Value []byte // JSON; nil removes the member
}

// editable are the members that Apply may touch.
var editable = []string{
	"stream_options", "cache_salt", "kv_transfer_params", "model",
	"max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "stream",
	"logprobs", "top_logprobs",
}

// Apply returns a copy of the body with the edits made. Every byte outside the edited
// members and their commas is unchanged. New members follow the last one, in the order of
// edits. Apply refuses keys that the door must not edit, values that are no JSON, and
// bodies that have an edited key twice.
func Apply(body []byte, edits ...Edit) ([]byte, error) {
	size := len(body)
	for i, e := range edits {
		if !slices.Contains(editable, e.Key) {
			return nil, fmt.Errorf("openai: member %q is not edited", e.Key)
		}
		if slices.ContainsFunc(edits[:i], func(o Edit) bool { return o.Key == e.Key }) {
			return nil, fmt.Errorf("openai: two edits of member %q", e.Key)
		}
		if e.Value != nil && !isValue(e.Value) {
			return nil, fmt.Errorf("openai: the new value of member %q is not JSON", e.Key)
		}
		size += len(e.Key) + len(e.Value) + 4
	}
	ed := editor{scanner: scanner{data: body}, edits: edits, out: make([]byte, 0, size)}
	ed.run()
	if ed.err != nil {
		return nil, bodyError(ed.err)
	}
	return ed.out, nil
}

func isValue(b []byte) bool {
	s := scanner{data: b}
	s.space()
	s.value()
	s.end()
	return s.err == nil
}

// editor copies a body member by member.
type editor struct {
	scanner
	edits []Edit
	done  uint64 // a bit for each edit that has met its member
	out   []byte
	any   bool // out has a member
}

func (e *editor) run() {
	e.space()
	if e.peek() != '{' {
		e.err = errNotObject
		return
	}
	l := e.open()
	e.out = append(e.out, e.data[:e.pos]...)
	end := e.pos // of the last member
	for first := true; l.next(); first = false {
		e.member(&l, end, first)
		if e.err != nil {
			return
		}
		end = e.pos
	}
	e.end()
	e.add()
	e.out = append(e.out, e.data[end:]...)
}

// member copies, replaces or drops the member at the scanner. The bytes from end, where
// the member before it ended, are white space and a comma.
func (e *editor) member(l *list, end int, first bool) {
	start := e.pos
	key := l.key()
	at := e.pos
	value := e.value()
	if e.err != nil {
		return
	}
	i := e.find(unquote(key))
	if i >= 0 {
		if e.done&(1<<i) != 0 {
			e.err = &FieldError{Field: e.edits[i].Key, Want: "one value", Got: "a second one"}
			return
		}
		e.done |= 1 << i
		if value = e.edits[i].Value; value == nil {
			return
		}
	}
	if e.any || first {
		e.out = append(e.out, e.data[end:start]...)
	}
	e.out = append(e.out, e.data[start:at]...)
	e.out = append(e.out, value...)
	e.any = true
}

func (e *editor) find(key []byte) int {
	return slices.IndexFunc(e.edits, func(ed Edit) bool { return ed.Key == string(key) })
}

// add writes the members that the body lacks.
func (e *editor) add() {
	for i, ed := range e.edits {
		if e.done&(1<<i) != 0 || ed.Value == nil {
			continue
		}
		if e.any {
			e.out = append(e.out, ',')
		}
		e.out = append(e.out, '"')
		e.out = append(e.out, ed.Key...)
		e.out = append(e.out, '"', ':')
		e.out = append(e.out, ed.Value...)
		e.any = true
	}
}

// String returns s as a JSON value for an Edit.
func String(s string) []byte { return marshal(s) }

// Int returns n as a JSON value for an Edit.
func Int(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

// TokenList returns token ids as a JSON list.
func TokenList(ids []uint32) []byte {
	out := make([]byte, 1, 2+7*len(ids))
	out[0] = '['
	for i, id := range ids {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(id), 10)
	}
	return append(out, ']')
}

// WithUsage returns the stream_options that ask for usage at the end of the stream and keep
// the client's other options. vLLM refuses stream_options of a request that does not stream.
func (r *Request) WithUsage() json.RawMessage {
	if r.StreamOptions == nil {
		return json.RawMessage(`{"include_usage":true}`)
	}
	var options map[string]json.RawMessage
	if json.Unmarshal(r.StreamOptions, &options) != nil {
		return json.RawMessage(`{"include_usage":true}`)
	}
	options["include_usage"] = json.RawMessage("true")
	return marshal(options)
}
