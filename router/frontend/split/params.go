package split

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

// Way is how KV goes from the prefill worker to the decode worker.
type Way uint8

const (
	// Yard is by way of the pool that both workers share.
	Yard Way = iota
	// Engines is by the engines' own connectors.
	Engines
)

// String returns "yard" or "engines", as metrics have it.
func (w Way) String() string {
	if w == Yard {
		return "yard"
	}
	return "engines"
}

// remoteDecode asks vLLM's connectors to keep the blocks of a prompt for another engine. vLLM's
// example proxies send the null members too.
const remoteDecode = `"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null`

// PrefillParams returns kv_transfer_params of a route's request to the prefill worker; nil for
// none. ids are token ids that the prompt was rendered to, nil for none.
func (w Way) PrefillParams(route openai.Route, ids []uint32) []byte {
	switch {
	case w == Engines:
		return object([]string{remoteDecode}, ids)
	case route == openai.Messages:
		// Without the member vLLM refuses a thinking budget beside one token. Blockyard's
		// connector does not read it.
		return object([]string{`"do_remote_decode":true`}, ids)
	}
	return object(nil, ids)
}

// AwaitParams returns kv_transfer_params of the request to a decode worker of the yard: its
// connector waits until the agent has the first blocks of the prompt, or until the deadline.
func AwaitParams(blocks int, deadline time.Duration, ids []uint32) []byte {
	return object([]string{fmt.Sprintf(`"blockyard":{"await":%d,"deadline_ms":%d}`, blocks, deadline.Milliseconds())}, ids)
}

// object returns a JSON object of members and of ids as prompt_token_ids; nil without any.
func object(members []string, ids []uint32) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(m)
	}
	if len(ids) > 0 {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(`"prompt_token_ids":`)
		b.Write(openai.TokenList(ids))
	}
	if b.Len() == 1 {
		return nil
	}
	b.WriteByte('}')
	return b.Bytes()
}

// ErrNotHandedOver says that a prefill worker's answer does not tell where its blocks are: its
// engine has no connector that hands them over.
var ErrNotHandedOver = errors.New("the answer has no kv_transfer_params with do_remote_prefill: start the server with a connector that transfers KV, such as NixlConnector")

// maxParams bounds kv_transfer_params of an answer in bytes. A long prompt has some ten
// thousand block ids.
const maxParams = 1 << 20

// DecodeParams returns kv_transfer_params of the request to the decode worker: those of the
// prefill worker's answer as they are, and ids as in PrefillParams. The error is
// ErrNotHandedOver, or says what is wrong with the answer.
func DecodeParams(answer []byte, ids []uint32) ([]byte, error) {
	var a struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("answer of the prefill worker: %w", err)
	}
	if len(a.Params) > maxParams {
		return nil, fmt.Errorf("answer of the prefill worker: kv_transfer_params: %d bytes, want at most %d", len(a.Params), maxParams)
	}
	var p struct {
		RemotePrefill bool            `json:"do_remote_prefill"`
		Engine        json.RawMessage `json:"remote_engine_id"`
	}
	if len(a.Params) == 0 || json.Unmarshal(a.Params, &p) != nil || !p.RemotePrefill || len(p.Engine) == 0 || string(p.Engine) == "null" {
		return nil, ErrNotHandedOver
	}
	if len(ids) == 0 {
		return a.Params, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(a.Params, &members); err != nil {
		return nil, fmt.Errorf("answer of the prefill worker: kv_transfer_params: %w", err)
	}
	members["prompt_token_ids"] = openai.TokenList(ids)
	return json.Marshal(members)
}

// PrefillEdits returns the edits that make the prefill worker's body of a request's: one token,
// not streamed, without log probabilities. params is its kv_transfer_params, nil for none.
func PrefillEdits(r *openai.Request, params []byte) []openai.Edit {
	limit := "max_tokens"
	if r.Route == openai.Responses {
		limit = "max_output_tokens"
	}
	edits := []openai.Edit{
		{Key: limit, Value: openai.Int(1)}, {Key: "stream", Value: []byte("false")},
		{Key: "kv_transfer_params", Value: params},
	}
	for _, key := range []string{"max_completion_tokens", "min_tokens", "n", "stream_options", "logprobs", "top_logprobs"} {
		edits = append(edits, openai.Edit{Key: key})
	}
	return edits
}
