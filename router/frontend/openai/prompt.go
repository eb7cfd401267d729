package openai

import (
	"bytes"
	"math"
	"strconv"
)

const maxToken = math.MaxUint32

// prompts reads a text, token ids, or a list of either. Routing goes by the first prompt.
func (p *parser) prompts(f field) {
	start := p.pos
	if p.peek() != '[' {
		p.promptText(f)
		return
	}
	l := p.open()
	if !l.next() {
		p.r.NoPrompt = "the prompt is empty"
		return
	}
	switch c := p.peek(); {
	case c == '"':
		p.promptText(f)
		p.rest(&l)
	case c == '[':
		p.r.Tokens = p.tokens(names[f] + "[0]")
		p.rest(&l)
	case c == '{' && f == fInput: // Embeddings take messages as input.
		p.r.NoPrompt = "the input is a list of messages"
		p.value()
		p.rest(&l)
	default:
		p.pos, p.depth = start, p.depth-1
		p.r.Tokens = p.tokens(names[f])
		p.r.Prompts = 1
	}
}

// rest counts the prompts of a list whose first one has been read.
func (p *parser) rest(l *list) {
	p.r.Prompts = 1
	for l.next() {
		p.value()
		p.r.Prompts++
	}
}

func (p *parser) promptText(f field) {
	if p.peek() != '"' {
		p.refuse(f, "a string or a list", shorten(p.value()))
		return
	}
	raw := p.text()
	p.r.prompt, p.r.Text, p.r.Prompts = raw, string(unquote(raw)), 1
}

// tokens reads a list of token ids. It returns a list of exactly their number.
func (s *scanner) tokens(name string) []uint32 {
	inner := s.data[min(s.pos+1, len(s.data)):]
	if end := bytes.IndexByte(inner, ']'); end >= 0 {
		inner = inner[:end]
	}
	ids := make([]uint32, 0, min(bytes.Count(inner, []byte{','})+1, len(inner)/2+1))
	for l := s.open(); l.next(); {
		id, ok := s.token()
		if !ok {
			if got := s.value(); s.err == nil {
				s.err = &FieldError{
					Field: name + "[" + strconv.Itoa(len(ids)) + "]",
					Want:  "a token id in 0.." + strconv.FormatUint(maxToken, 10),
					Got:   shorten(got),
				}
			}
			return nil
		}
		ids = append(ids, id)
	}
	return ids
}

// token reads one token id. Without one the scanner stays where it is.
func (s *scanner) token() (uint32, bool) {
	start, id := s.pos, uint64(0)
	i := start
	for ; i < len(s.data) && s.data[i]-'0' <= 9; i++ {
		if id = id*10 + uint64(s.data[i]-'0'); id > maxToken {
			return 0, false
		}
	}
	switch {
	case i == start, s.data[start] == '0' && i > start+1:
		return 0, false
	case i < len(s.data) && (s.data[i] == '.' || s.data[i]|0x20 == 'e'):
		return 0, false
	}
	s.pos = i
	return uint32(id), true
}

// messages finds parts that are no text in a list of messages.
func (p *parser) messages() {
	if p.peek() != '[' {
		p.refuse(fMessages, "a list", shorten(p.value()))
		return
	}
	for l := p.open(); l.next(); {
		if p.peek() != '{' {
			p.value()
			continue
		}
		p.message()
	}
}

// items finds parts that are no text in the input of Responses.
func (p *parser) items() {
	for l := p.open(); l.next(); {
		if p.peek() != '{' {
			p.value()
			continue
		}
		p.message()
	}
}

func (p *parser) message() {
	legacy, reasoning := false, false
	for l := p.open(); l.next(); {
		key := l.key()
		if p.err != nil {
			return
		}
		null := p.peek() == 'n'
		switch string(key) {
		case `"content"`, `"output"`:
			p.content()
			continue
		case `"reasoning_content"`:
			legacy = !null
		case `"reasoning"`:
			reasoning = !null
		}
		p.value()
	}
	p.legacyReasoning = p.legacyReasoning || legacy && !reasoning
}

// content looks at the parts of a message. Anthropic's tool results have parts too.
func (p *parser) content() {
	if p.peek() != '[' {
		p.value()
		return
	}
	for l := p.open(); l.next(); {
		if p.peek() != '{' {
			p.value()
			continue
		}
		for part := p.open(); part.next(); {
			key := part.key()
			if p.err != nil {
				return
			}
			if string(key) == `"content"` {
				p.content()
				continue
			}
			value := p.value()
			if string(key) == `"type"` {
				p.r.Multimodal = p.r.Multimodal || !textParts[string(unquote(value))]
			} else if mediaKeys[string(key)] {
				p.r.Multimodal = true
			}
		}
	}
}

// textParts are the types of parts that become text. vLLM takes any other for media.
var textParts = map[string]bool{
	"text": true, "input_text": true, "output_text": true, "refusal": true, "thinking": true, "tool_reference": true,
	// Anthropic's and those of Responses.
	"tool_use": true, "tool_result": true, "redacted_thinking": true, "tool_addition": true, "tool_removal": true,
	"reasoning_text": true, "summary_text": true,
}

// mediaKeys mark a part as media whatever its type is.
var mediaKeys = map[string]bool{
	`"image_url"`: true, `"image_pil"`: true, `"image_embeds"`: true, `"audio_url"`: true, `"input_audio"`: true,
	`"audio_embeds"`: true, `"video_url"`: true, `"video_embeds"`: true, `"prompt_embeds"`: true, `"input_image"`: true,
}
