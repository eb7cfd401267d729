package openai

// Chunk is what an event of a stream carries.
type Chunk struct {
	Token   bool  // a token: text, reasoning, tool calls
	Choices int   // number of choices
	Finish  bool  // the end of a choice, of a message or of a response
	Error   bool  // an error instead of an answer
	Usage   Usage // valid if HasUsage
	// HasUsage: OpenAI's last chunk, each chunk with continuous_usage_stats, Anthropic's
	// message_start and message_delta, the end of a response.
	HasUsage bool
}

// UsageOnly reports whether the chunk has usage and nothing else. It is the chunk that
// stream_options.include_usage adds.
func (c *Chunk) UsageOnly() bool {
	return c.HasUsage && c.Choices == 0 && !c.Token && !c.Finish && !c.Error
}

// Inspect returns what the event carries. Data that is no JSON object carries nothing.
// A chunk with a text carries a token even when the text is empty: the token may be a part
// of a character. But the first chunk of a chat, which has a role and an empty content,
// carries none.
func (e *Event) Inspect() Chunk {
	var c Chunk
	s := scanner{data: e.Data}
	if s.space(); s.peek() != '{' {
		return c
	}
	for l := s.open(); l.next(); {
		switch string(l.key()) {
		case `"choices"`:
			s.choices(&c)
		case `"type"`:
			c.eventType(s.value())
		case `"usage"`:
			s.usage(&c)
		case `"message"`, `"response"`:
			s.nested(&c)
		case `"error"`:
			c.Error = string(s.value()) != "null" || c.Error
		default:
			s.value()
		}
	}
	if s.err != nil {
		return Chunk{}
	}
	return c
}

// eventType reads the type of an event of Anthropic or of Responses.
func (c *Chunk) eventType(raw []byte) {
	name := string(unquote(raw))
	switch name {
	case "content_block_delta":
		c.Token = true
	case "message_stop", "response.completed", "response.incomplete":
		c.Finish = true
	case "response.failed":
		c.Finish, c.Error = true, true
	case "error":
		c.Error = true
	default:
		const prefix, suffix = "response.", ".delta"
		if len(name) > len(prefix)+len(suffix) && name[:len(prefix)] == prefix && name[len(name)-len(suffix):] == suffix {
			c.Token = true
		}
	}
}

// choices reads the choices of a chunk.
func (s *scanner) choices(c *Chunk) {
	if s.peek() != '[' {
		s.value()
		return
	}
	for l := s.open(); l.next(); {
		c.Choices++
		if s.peek() != '{' {
			s.value()
			continue
		}
		for choice := s.open(); choice.next(); {
			switch string(choice.key()) {
			case `"text"`:
				c.Token = s.peek() == '"' || c.Token
				s.value()
			case `"token_ids"`:
				c.Token = s.filled() || c.Token
			case `"delta"`:
				s.delta(c)
			case `"finish_reason"`:
				c.Finish = string(s.value()) != "null" || c.Finish
			default:
				s.value()
			}
		}
	}
}

// delta reads the delta of a chat. An empty content beside a role is the first chunk's.
func (s *scanner) delta(c *Chunk) {
	if s.peek() != '{' {
		s.value()
		return
	}
	role, empty := false, false
	for l := s.open(); l.next(); {
		switch string(l.key()) {
		case `"role"`:
			role = string(s.value()) != "null"
		case `"content"`:
			empty = s.peek() == '"'
			c.Token = s.filled() || c.Token
		case `"reasoning"`, `"reasoning_content"`, `"refusal"`, `"tool_calls"`, `"function_call"`, `"audio"`:
			c.Token = s.filled() || c.Token
		default:
			s.value()
		}
	}
	c.Token = c.Token || empty && !role
}

// filled passes over a value and reports whether it has something: a string with
// characters, a list with elements, an object.
func (s *scanner) filled() bool {
	switch v := s.value(); {
	case len(v) == 0, v[0] == 'n':
		return false
	case v[0] == '"':
		return len(v) > len(`""`)
	case v[0] == '[':
		inner := scanner{data: v, pos: 1}
		inner.space()
		return inner.peek() != ']'
	}
	return true
}

// nested looks for usage in the message or response of an event.
func (s *scanner) nested(c *Chunk) {
	if s.peek() != '{' {
		s.value()
		return
	}
	for l := s.open(); l.next(); {
		if string(l.key()) == `"usage"` {
			s.usage(c)
		} else {
			s.value()
		}
	}
}
