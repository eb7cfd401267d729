package openai

// findPrompt fills Chat, NoPrompt and Approximate from the members that were read.
func (p *parser) findPrompt() {
	r := p.r
	switch {
	case r.Route == Other:
		r.NoPrompt = "the body of this route is not read"
	case p.raw[fPromptEmbeds] != nil:
		r.Tokens, r.Text, r.prompt = nil, "", nil
		r.NoPrompt = "prompt_embeds have no token ids"
	case r.Tokens != nil && len(r.Tokens) == 0:
		r.Tokens, r.NoPrompt = nil, "the prompt is empty"
	case r.Tokens != nil, r.prompt != nil, r.NoPrompt != "":
	case r.Route == Embeddings && p.raw[fMessages] != nil:
		r.NoPrompt, r.Prompts = "a chat is embedded", 1
	case rendering[r.Route] != nil && p.raw[rendering[r.Route][0]] != nil:
		r.Chat, r.Prompts = p.chat(), 1
	default:
		r.NoPrompt = "the body has no prompt"
	}
	if p.raw[fPromptEmbeds] != nil && r.Prompts == 0 {
		r.Prompts = 1
	}
	p.findExtra()
	if r.Route == Chat && (p.raw[fDocuments] != nil || p.raw[fReasoningEffort] != nil) {
		r.kwargs = templateKwargs(p.raw[fChatTemplateKwargs], p.raw[fDocuments], p.raw[fReasoningEffort])
	}
	r.Approximate = p.approximate()
}

// findExtra keeps the members that decide the tokens besides the prompt itself. The limit
// of new tokens decides only where a prompt is cut, and where a budget of thinking is
// compared with it.
func (p *parser) findExtra() {
	r := p.r
	if r.prompt != nil {
		r.extra = p.appendMembers(nil, fAddSpecialTokens, fTruncatePromptTokens, fTruncationSide)
	}
	switch {
	case p.raw[fTruncatePromptTokens] != nil, p.raw[fTruncation] != nil, p.raw[fThinking] != nil:
		r.limit = p.appendMembers(nil, fMaxTokens, fMaxCompletionTokens, fMaxOutputTokens)
	case r.Route == Completions, r.Route == Messages:
		r.limit = []byte(`,"max_tokens":1`)
	}
}

// RenderBody returns the body that asks a server to render the prompt: a POST to the
// route's path with /render. It has no member that leaves the tokens as they are, so that
// equal prompts have equal bodies. It is nil without a text or a chat.
func (r *Request) RenderBody(model string) []byte {
	switch r.Route {
	case Completions, Chat, Responses, Messages:
		if r.prompt != nil || r.Chat != nil {
			return r.body(model, string(r.limit)+`,"mm_payload":"none"`)
		}
	}
	return nil
}

// TokenizeBody returns the body of a POST to /tokenize. It is nil without a text or a
// chat, and for a chat of Messages or Responses with more than text and function calls.
func (r *Request) TokenizeBody(model string) []byte {
	switch {
	case r.prompt != nil:
		return r.body(model, "")
	case r.Chat == nil:
		return nil
	case r.Route == Chat:
		return r.tokenizeChat(model)
	}
	chat := r.convert()
	if chat == nil {
		return nil
	}
	return (&Request{Chat: chat}).body(model, "")
}

// tokenizeChat hands documents and reasoning_effort, which /tokenize does not know, to the
// template as its arguments. The engine does the same.
func (r *Request) tokenizeChat(model string) []byte {
	if r.kwargs == nil {
		return r.body(model, "")
	}
	e := editor{scanner: scanner{data: r.Chat}, edits: []Edit{{Key: names[fChatTemplateKwargs], Value: r.kwargs}}}
	e.run()
	return (&Request{Chat: e.out}).body(model, "")
}

func (r *Request) body(model, more string) []byte {
	name := String(model)
	out := make([]byte, 0, len(name)+len(r.prompt)+len(r.Chat)+len(r.extra)+len(more)+24)
	out = append(append(out, `{"model":`...), name...)
	if r.prompt != nil {
		out = append(append(out, `,"prompt":`...), r.prompt...)
	}
	if len(r.Chat) > 2 {
		out = append(append(out, ','), r.Chat[1:len(r.Chat)-1]...)
	}
	out = append(append(out, r.extra...), more...)
	return append(out, '}')
}

// chat returns an object of the members that decide the tokens, in the order of the table.
func (p *parser) chat() []byte {
	size := 2
	for _, f := range rendering[p.r.Route] {
		if v := p.raw[f]; v != nil {
			size += len(names[f]) + len(v) + 4
		}
	}
	out := make([]byte, 0, size)
	out = append(p.appendMembers(out, rendering[p.r.Route]...), '}')
	out[0] = '{'
	return out
}

// appendMembers adds a comma and the member for each field that the body has.
func (p *parser) appendMembers(out []byte, fs ...field) []byte {
	for _, f := range fs {
		if p.raw[f] == nil {
			continue
		}
		out = append(out, ',', '"')
		out = append(out, names[f]...)
		out = append(out, '"', ':')
		out = append(out, p.raw[f]...)
	}
	return out
}

// approximate returns why vLLM's /tokenize would not render the prompt as the engine does.
func (p *parser) approximate() string {
	r := p.r
	if r.Tokens != nil {
		return ""
	}
	for _, f := range []field{fTruncatePromptTokens, fPadding} {
		if p.raw[f] != nil {
			return names[f] + " changes the tokens"
		}
	}
	switch r.Route {
	case Responses, Messages:
		return "/tokenize does not read the bodies of " + r.Route.Path()
	case Chat:
		return p.approximateChat()
	}
	return ""
}

// approximateChat returns why the tokens that vLLM 0.32 renders for this chat may differ from the
// prompt that it computes: TokenizeChatRequest does not read every field. The text is empty when
// they are equal.
func (p *parser) approximateChat() string {
	switch {
	case p.r.Multimodal:
		return "a message has parts that are no text"
	case p.raw[fTools] != nil && p.raw[fToolChoice] != nil && string(p.raw[fToolChoice]) != `"auto"`:
		return "tool_choice is not rendered"
	case p.legacyReasoning:
		return "reasoning_content is not rendered"
	}
	return ""
}
