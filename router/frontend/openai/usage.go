package openai

import (
	"encoding/json"
	"strconv"
)

// Usage is what an engine reports of a request.
type Usage struct {
	Prompt     int // tokens of the prompt, cached ones included
	Completion int
	Cached     int  // tokens of the prompt that came from the cache
	HasCached  bool // the engine reports cached tokens: --enable-prompt-tokens-details of vLLM
}

// ParseUsage returns the usage of an answer that is not streamed, of any route.
func ParseUsage(body []byte) (Usage, bool) {
	var c Chunk
	s := scanner{data: body}
	if s.space(); s.peek() == '{' {
		s.nested(&c)
		s.end()
	}
	return c.Usage, c.HasUsage && s.err == nil
}

// usage reads a usage object in the shape of OpenAI, of Responses or of Anthropic.
func (s *scanner) usage(c *Chunk) {
	if s.peek() != '{' {
		s.value()
		return
	}
	u := &c.Usage
	written := 0
	anthropic := false // its input_tokens leave out what came from the cache
	for l := s.open(); l.next(); {
		switch string(l.key()) {
		case `"prompt_tokens"`, `"input_tokens"`:
			s.count(&u.Prompt)
		case `"completion_tokens"`, `"output_tokens"`:
			s.count(&u.Completion)
		case `"prompt_tokens_details"`, `"input_tokens_details"`:
			s.details(u)
		case `"cache_read_input_tokens"`:
			if s.count(&u.Cached) {
				u.HasCached, anthropic = true, true
			}
		case `"cache_creation_input_tokens"`:
			anthropic = s.count(&written) || anthropic
		default:
			s.value()
		}
	}
	if anthropic {
		u.Prompt += u.Cached + written
	}
	c.HasUsage = s.err == nil
}

func (s *scanner) details(u *Usage) {
	if s.peek() != '{' {
		s.value()
		return
	}
	for l := s.open(); l.next(); {
		if string(l.key()) == `"cached_tokens"` {
			u.HasCached = s.count(&u.Cached) || u.HasCached
		} else {
			s.value()
		}
	}
}

// count reads a number of tokens. Other values leave n as it is.
func (s *scanner) count(n *int) bool {
	v, err := strconv.Atoi(string(s.value()))
	if err != nil || v < 0 {
		return false
	}
	*n = v
	return true
}

// TokenAnswer is what a server answers that was asked for the tokens of a prompt.
type TokenAnswer struct {
	Tokens   []uint32
	Features json.RawMessage // of a render server: the multimodal objects; nil without any
}

// ParseTokenAnswer reads an answer of /tokenize or of a render route of vLLM. Of a list,
// which a completion is rendered to, it reads the first element. The error is a *FieldError.
func ParseTokenAnswer(body []byte) (TokenAnswer, error) {
	var a TokenAnswer
	s := scanner{data: body}
	s.space()
	if s.peek() == '[' {
		l := s.open()
		if l.next() {
			s.tokenAnswer(&a)
			for l.next() {
				s.value()
			}
		}
	} else {
		s.tokenAnswer(&a)
	}
	s.end()
	if s.err == nil && a.Tokens == nil {
		s.err = &FieldError{Field: "tokens", Want: "a list of token ids", Got: "nothing"}
	}
	if s.err != nil {
		return TokenAnswer{}, bodyError(s.err)
	}
	return a, nil
}

func (s *scanner) tokenAnswer(a *TokenAnswer) {
	if s.peek() != '{' {
		s.fail("an object")
		return
	}
	for l := s.open(); l.next(); {
		switch key := l.key(); string(key) {
		case `"tokens"`, `"token_ids"`:
			a.Tokens = s.tokens(string(unquote(key)))
		case `"features"`:
			if v := s.value(); string(v) != "null" {
				a.Features = v
			}
		default:
			s.value()
		}
	}
}

// ModelList is the answer to GET /v1/models.
type ModelList struct {
	Object string       `json:"object"`
	Data   []ModelEntry `json:"data"`
}

// ModelEntry is one model or adapter of a ModelList. Parent is the base model of an adapter, MaxLen
// the longest prompt with its answer in tokens; 0 is unknown.
type ModelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Root    string `json:"root"`
	Parent  string `json:"parent,omitempty"`
	MaxLen  int    `json:"max_model_len,omitempty"`
}
