package openai

import (
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"
)

// Limits of what routing reads. Members that routing does not read have no limit but
// the body's.
const (
	MaxBody   = 64 << 20 // bytes of a body
	MaxString = 4096     // bytes of a model name, a salt, a user
)

// Request is what routing needs of a body. Its slices may alias the body.
type Request struct {
	Route  Route
	Model  string // empty when not given
	Stream bool

	// Of Tokens, Text and Chat at most one is set. None is set when the prompt is
	// unknown: NoPrompt says why.
	Tokens   []uint32        // token ids of the first prompt
	Text     string          // text of the first prompt
	Chat     json.RawMessage // object of the messages and of what renders them
	NoPrompt string
	Prompts  int // number of prompts in a batch; 1 for a chat

	Salt     string // cache_salt
	User     string // user; metadata.user_id of Messages
	Session  string // session_id
	CacheKey string // prompt_cache_key

	// MaxTokens is max_completion_tokens, max_output_tokens or max_tokens; 0 when not given.
	MaxTokens int
	MinTokens int
	N         int // answers for each prompt; 1 when not given
	BestOf    int
	Priority  int

	StreamOptions   json.RawMessage // as the client gave it; nil when absent or null
	IncludeUsage    *bool           // stream_options.include_usage
	ContinuousUsage bool            // stream_options.continuous_usage_stats

	Approximate string // why /tokenize would not render as the engine does, or ""
	Multimodal  bool   // a part of a message is no text
	KVTransfer  bool   // the body has kv_transfer_params

	PreviousResponse string // previous_response_id
	Conversation     bool   // the body names a stored conversation
	Store            bool   // store, true by default for Responses
	Background       bool

	Echo           bool
	BeamSearch     bool
	Logprobs       bool // logprobs or top_logprobs are asked for
	PromptLogprobs bool
	ReturnTokenIDs bool

	prompt json.RawMessage // the first prompt as JSON, for the tokenizer
	extra  []byte          // members beside prompt that decide the tokens: `,"key":value`…
	limit  []byte          // members with the limit of new tokens, for the renderer
	kwargs []byte          // chat_template_kwargs for the tokenizer; nil as the client gave them
}

// Parse reads what routing needs of a body. It returns a *FieldError for a body that no
// engine would read the same way, and for a member that is not of its type.
//
// Parse does not copy the body: the Request aliases it.
func Parse(route Route, body []byte) (*Request, error) {
	if len(body) > MaxBody {
		return nil, &FieldError{Field: "body", Want: "at most " + strconv.Itoa(MaxBody) + " bytes",
			Got: strconv.Itoa(len(body)) + " bytes", Status: 413}
	}
	if !utf8.Valid(body) {
		return nil, &FieldError{Field: "body", Want: "UTF-8", Got: "other bytes"}
	}
	p := parser{
		scanner: scanner{data: body},
		r:       &Request{Route: route, N: 1, Store: route == Responses},
	}
	p.object()
	if p.err != nil {
		return nil, bodyError(p.err)
	}
	p.finish()
	if p.err != nil {
		return nil, bodyError(p.err)
	}
	return p.r, nil
}

// parser reads the top-level members of one body.
type parser struct {
	scanner
	r    *Request
	seen uint64         // a bit for each field
	raw  [fields][]byte // values as they are in the body; nil when absent or null

	legacyReasoning bool // a message has reasoning_content and no reasoning
}

func (p *parser) object() {
	p.space()
	if c := p.peek(); c != '{' {
		if p.err = errNotObject; p.pos >= len(p.data) {
			p.err = &syntaxError{offset: p.pos, want: "a JSON object", end: true}
		}
		return
	}
	for l := p.open(); l.next(); {
		key := l.key()
		if p.err != nil {
			return
		}
		f := byName[string(unquote(key))]
		if f == unknown {
			p.value()
			continue
		}
		if p.seen&(1<<f) != 0 {
			p.refuse(f, "one value", "a second one")
			return
		}
		p.seen |= 1 << f
		p.member(f)
	}
	p.end()
}

// member reads the value of a field. null counts as absent.
func (p *parser) member(f field) {
	start := p.pos
	if p.peek() == 'n' {
		p.value()
		return
	}
	switch {
	case f == fMessages && p.r.Route != Responses:
		p.messages()
	case f == fInput && p.r.Route == Responses && p.peek() == '[':
		p.items()
	case f == p.promptField():
		p.prompts(f)
	case f == fStreamOptions:
		p.streamOptions()
	case f == fMetadata && p.r.Route == Messages && p.peek() == '{':
		p.metadata()
	default:
		p.value()
	}
	p.raw[f] = p.since(start)
	if p.err == nil {
		p.scalar(f)
	}
}

// promptField returns the member that has text or token ids.
func (p *parser) promptField() field {
	switch p.r.Route {
	case Completions, Tokenize:
		return fPrompt
	case Embeddings:
		return fInput
	}
	return unknown
}

// scalar stores a value that is a string, a number or a boolean.
func (p *parser) scalar(f field) {
	r := p.r
	switch f {
	case fModel:
		r.Model = p.string(f)
	case fSalt:
		if r.Salt = p.string(f); r.Salt == "" {
			p.refuse(f, "a string that is not empty", `""`)
		}
	case fUser:
		r.User = p.string(f)
	case fSession:
		r.Session = p.string(f)
	case fCacheKey:
		r.CacheKey = p.string(f)
	case fPreviousResponse:
		r.PreviousResponse = p.string(f)
	case fConversation:
		r.Conversation = true
	case fMinTokens:
		r.MinTokens = p.integer(f, 0, math.MaxInt32)
	case fN:
		r.N = p.integer(f, 1, math.MaxInt32)
	case fBestOf:
		r.BestOf = p.integer(f, 1, math.MaxInt32)
	case fPriority:
		r.Priority = p.integer(f, math.MinInt64, math.MaxInt64)
	case fTopLogprobs:
		r.Logprobs = r.Logprobs || p.integer(f, -1, math.MaxInt32) != 0
	case fPromptLogprobs:
		p.integer(f, -1, math.MaxInt32)
		r.PromptLogprobs = true
	case fLogprobs:
		// Completions takes a number, where 0 still asks for the token's own.
		r.Logprobs = r.Logprobs || string(p.raw[f]) != "false"
	case fKVTransfer:
		r.KVTransfer = true
	default:
		p.flag(f)
	}
}

// flag stores a boolean.
func (p *parser) flag(f field) {
	r := p.r
	switch f {
	case fStream:
		r.Stream = p.boolean(f)
	case fStore:
		r.Store = p.boolean(f)
	case fBackground:
		r.Background = p.boolean(f)
	case fEcho:
		r.Echo = p.boolean(f)
	case fUseBeamSearch:
		r.BeamSearch = p.boolean(f)
	case fReturnTokenIDs:
		r.ReturnTokenIDs = p.boolean(f)
	}
}

// finish derives what depends on several members.
func (p *parser) finish() {
	r := p.r
	for _, f := range []field{fMaxTokens, fMaxOutputTokens, fMaxCompletionTokens} {
		if p.raw[f] != nil {
			r.MaxTokens = p.integer(f, 0, math.MaxInt32)
		}
	}
	if r.Route == Completions && p.seen&(1<<fMaxTokens) == 0 {
		r.MaxTokens = completionTokens
	}
	p.findPrompt()
}

// completionTokens is what a completion generates when the client does not say.
const completionTokens = 16

func (p *parser) boolean(f field) bool {
	switch string(p.raw[f]) {
	case "true":
		return true
	case "false":
	default:
		p.refuse(f, "true or false", shorten(p.raw[f]))
	}
	return false
}

func (p *parser) string(f field) string {
	raw := p.raw[f]
	if raw[0] != '"' {
		p.refuse(f, "a string", shorten(raw))
		return ""
	}
	text := unquote(raw)
	if len(text) > MaxString {
		p.refuse(f, "at most "+strconv.Itoa(MaxString)+" bytes", strconv.Itoa(len(text))+" bytes")
		return ""
	}
	return string(text)
}

// integer takes 16, 16.0 and 1.6e1, as pydantic does.
func (p *parser) integer(f field, low, high int64) int {
	raw := string(p.raw[f])
	n, err := strconv.ParseInt(raw, 10, 64)
	if err != nil && (raw[0] == '-' || raw[0]-'0' <= 9) {
		x, e := strconv.ParseFloat(raw, 64)
		if e == nil && x == math.Trunc(x) && math.Abs(x) <= 1<<53 {
			n, err = int64(x), nil
		}
	}
	if err != nil || n < low || n > high {
		p.refuse(f, "an integer in "+strconv.FormatInt(low, 10)+".."+strconv.FormatInt(high, 10), shorten(p.raw[f]))
		return 0
	}
	return int(n)
}

// streamOptions reads include_usage. The last of two wins, as in Python.
func (p *parser) streamOptions() {
	if p.peek() != '{' {
		p.refuse(fStreamOptions, "an object", shorten(p.value()))
		return
	}
	start := p.pos
	for l := p.open(); l.next(); {
		key := unquote(l.key())
		raw := p.value()
		if p.err != nil {
			return
		}
		switch string(key) {
		case "include_usage":
			p.r.IncludeUsage = p.option("stream_options.include_usage", raw)
		case "continuous_usage_stats":
			on := p.option("stream_options.continuous_usage_stats", raw)
			p.r.ContinuousUsage = on != nil && *on
		}
	}
	p.r.StreamOptions = p.since(start)
}

// metadata reads Anthropic's user_id.
func (p *parser) metadata() {
	for l := p.open(); l.next(); {
		key, start := unquote(l.key()), p.pos
		raw := p.value()
		if string(key) == "user_id" && len(raw) > 0 && raw[0] == '"' {
			p.raw[fMetadata] = p.data[start:p.pos]
			p.r.User = p.string(fMetadata)
		}
	}
}

func (p *parser) option(name string, raw []byte) *bool {
	on := string(raw) == "true"
	if !on && string(raw) != "false" {
		if string(raw) != "null" {
			p.err = &FieldError{Field: name, Want: "true or false", Got: shorten(raw)}
		}
		return nil
	}
	return &on
}

// refuse records an error of a field, unless there is an earlier one.
func (p *parser) refuse(f field, want, got string) {
	if p.err == nil {
		p.err = &FieldError{Field: names[f], Want: want, Got: got}
	}
}
