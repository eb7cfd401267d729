package openai

import (
	"encoding/json"
	"strconv"
	"strings"
)

// chatMessage is a message of a chat completion.
type chatMessage struct {
	Role       string     `json:"role"`
	Reasoning  string     `json:"reasoning,omitempty"`
	Content    any        `json:"content,omitempty"` // a string, parts, or JSON of the client
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type textPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// tool is a function that the model may call. Parameters is the schema as the client
// wrote it: the order of its keys is part of the prompt.
type tool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// converted is a chat of another API as a body of /tokenize.
type converted struct {
	Messages []chatMessage   `json:"messages"`
	Tools    []tool          `json:"tools,omitempty"`
	Kwargs   json.RawMessage `json:"chat_template_kwargs,omitempty"`
}

// block is a part of a message of Messages, or an item of Responses.
type block struct {
	Type      string
	Role      string
	Text      string
	Thinking  string
	ID        string
	Name      string
	Input     json.RawMessage
	ToolUseID string `json:"tool_use_id"`
	Content   json.RawMessage
	Summary   json.RawMessage
	CallID    string `json:"call_id"`
	Arguments string
	Output    json.RawMessage
}

// convert turns the chat of Messages or Responses into that of a chat completion, as vLLM
// does before it renders the chat. It returns nil for a chat with anything else than text
// and function calls.
func (r *Request) convert() []byte {
	var c *converted
	switch r.Route {
	case Messages:
		c = convertMessages(r.Chat)
	case Responses:
		c = convertResponses(r.Chat)
	}
	if c == nil {
		return nil
	}
	return marshal(c)
}

func convertMessages(chat []byte) *converted {
	var in struct {
		Messages []block
		System   json.RawMessage
		Tools    []struct {
			Name        string
			Description string
			InputSchema json.RawMessage `json:"input_schema"`
		}
		Kwargs   json.RawMessage `json:"chat_template_kwargs"`
		Thinking struct{ Type string }
		Output   struct{ Effort string } `json:"output_config"`
	}
	if json.Unmarshal(chat, &in) != nil {
		return nil
	}
	c := &converted{Messages: []chatMessage{}}
	for _, t := range in.Tools {
		c.Tools = append(c.Tools, tool{"function", function{t.Name, t.Description, t.InputSchema}})
	}
	if system := systemText(in.System); system != "" {
		c.Messages = append(c.Messages, chatMessage{Role: "system", Content: system})
	}
	for i := range in.Messages {
		if !c.addMessage(&in.Messages[i]) {
			return nil
		}
	}
	effort := in.Output.Effort
	if in.Thinking.Type == "disabled" && effort == "" {
		effort = "none"
	}
	c.Kwargs = templateKwargs(in.Kwargs, nil, effortValue(effort))
	return c
}

// systemText joins the texts of a system prompt. vLLM drops a header that changes with
// every request.
func systemText(raw json.RawMessage) string {
	var all strings.Builder
	for _, b := range blocks(raw) {
		if b.Type == "text" && !strings.HasPrefix(b.Text, "x-anthropic-billing-header") {
			all.WriteString(b.Text)
		}
	}
	return all.String()
}

// blocks returns the parts of a content. A string is one text.
func blocks(raw json.RawMessage) []block {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []block{{Type: "text", Text: text}}
	}
	var list []block
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list
}

// addMessage adds a message of Messages. Results of tools become messages of their own.
func (c *converted) addMessage(m *block) bool {
	if m.Role == "system" {
		if text := systemText(m.Content); text != "" {
			c.Messages = append(c.Messages, chatMessage{Role: "system", Content: text})
		}
		return true
	}
	out := chatMessage{Role: m.Role}
	var parts []textPart
	for _, b := range blocks(m.Content) {
		switch b.Type {
		case "text":
			parts = append(parts, textPart{"text", b.Text})
		case "thinking":
			out.Reasoning += b.Thinking
		case "tool_use":
			out.ToolCalls = append(out.ToolCalls, toolCall{b.ID, "function", functionCall{b.Name, string(b.Input)}})
		case "tool_result":
			result := blocks(b.Content)
			texts := make([]string, 0, len(result))
			for _, t := range result {
				if t.Type != "text" {
					return false
				}
				texts = append(texts, t.Text)
			}
			c.Messages = append(c.Messages, chatMessage{Role: "tool", ToolCallID: b.ToolUseID, Content: strings.Join(texts, "\n")})
		case "redacted_thinking":
		default:
			return false
		}
	}
	switch len(parts) {
	case 0:
	case 1:
		out.Content = parts[0].Text
	default:
		out.Content = parts
	}
	if m.Role != "user" || parts != nil {
		c.Messages = append(c.Messages, out)
	}
	return true
}

func convertResponses(chat []byte) *converted {
	var in struct {
		Input        json.RawMessage
		Instructions string
		Tools        []struct {
			Type string
			function
		}
		Kwargs    json.RawMessage `json:"chat_template_kwargs"`
		Previous  json.RawMessage `json:"previous_input_messages"`
		Reasoning struct{ Effort string }
	}
	if json.Unmarshal(chat, &in) != nil || in.Previous != nil {
		return nil
	}
	c := &converted{Messages: []chatMessage{}}
	if in.Instructions != "" {
		c.Messages = append(c.Messages, chatMessage{Role: "system", Content: in.Instructions})
	}
	for _, t := range in.Tools {
		if t.Type != "function" {
			return nil
		}
		c.Tools = append(c.Tools, tool{"function", t.function})
	}
	var text string
	var items []block
	switch {
	case json.Unmarshal(in.Input, &text) == nil:
		c.Messages = append(c.Messages, chatMessage{Role: "user", Content: text})
	case json.Unmarshal(in.Input, &items) != nil:
		return nil
	}
	for i := range items {
		if !c.addItem(&items[i]) {
			return nil
		}
	}
	c.Kwargs = templateKwargs(in.Kwargs, nil, effortValue(in.Reasoning.Effort))
	return c
}

// addItem adds an item of Responses. Several items of one turn of the assistant make one
// message.
func (c *converted) addItem(b *block) bool {
	switch {
	case b.Type == "function_call":
		m := c.assistant(func(*chatMessage) bool { return true })
		m.ToolCalls = append(m.ToolCalls, toolCall{b.CallID, "function", functionCall{b.Name, b.Arguments}})
	case b.Type == "function_call_output":
		c.Messages = append(c.Messages, chatMessage{Role: "tool", ToolCallID: b.CallID, Content: b.Output})
	case b.Type == "reasoning":
		parts := append(blocks(b.Content), blocks(b.Summary)...)
		if len(parts) > 0 {
			c.assistant(func(m *chatMessage) bool { return m.Reasoning == "" }).Reasoning = parts[0].Text
		}
	case b.Role == "assistant":
		parts := blocks(b.Content)
		if len(parts) == 0 {
			return false
		}
		c.assistant(func(m *chatMessage) bool { return m.Content == nil }).Content = parts[0].Text
	case b.Role != "":
		content := textOf(b.Content)
		c.Messages = append(c.Messages, chatMessage{Role: b.Role, Content: content})
		return content != nil
	default:
		return false
	}
	return true
}

// textOf returns a content of Responses as a string or as text parts of a chat, and nil
// when a part is no text.
func textOf(raw json.RawMessage) any {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []textPart
	for _, b := range blocks(raw) {
		if b.Type != "input_text" && b.Type != "output_text" && b.Type != "text" {
			return nil
		}
		parts = append(parts, textPart{"text", b.Text})
	}
	if parts == nil {
		return nil
	}
	return parts
}

// assistant returns the last message if it is the assistant's and fits, else a new one.
func (c *converted) assistant(fits func(*chatMessage) bool) *chatMessage {
	if n := len(c.Messages); n > 0 && c.Messages[n-1].Role == "assistant" && fits(&c.Messages[n-1]) {
		return &c.Messages[n-1]
	}
	c.Messages = append(c.Messages, chatMessage{Role: "assistant"})
	return &c.Messages[len(c.Messages)-1]
}

func effortValue(effort string) []byte {
	if effort == "" {
		return nil
	}
	return String(effort)
}

// templateKwargs adds to the arguments of a chat template what the engine adds to them
// and /tokenize does not. Of two members of one name Python takes the last. It returns the
// client's arguments when there is nothing to add or they are no object.
func templateKwargs(kwargs, documents, effort []byte) []byte {
	if documents == nil && effort == nil {
		return kwargs
	}
	thinks := false
	out := []byte(`{`)
	if kwargs != nil && string(kwargs) != "null" {
		s := scanner{data: kwargs}
		if s.peek() != '{' {
			return kwargs
		}
		for l := s.open(); l.next(); {
			thinks = string(unquote(l.key())) == "enable_thinking" || thinks
			s.value()
		}
		out = append(out, kwargs[1:len(kwargs)-1]...)
	}
	add := func(name string, value []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), name...), `":`...), value...)
	}
	if documents != nil {
		add("documents", documents)
	}
	if effort != nil {
		add("reasoning_effort", effort)
		if !thinks {
			add("enable_thinking", strconv.AppendBool(nil, string(effort) != `"none"`))
		}
	}
	return append(out, '}')
}
