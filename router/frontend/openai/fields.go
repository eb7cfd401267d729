package openai

// field is a member of a body that routing reads or edits.
type field uint8

const (
	unknown field = iota
	fModel
	fStream
	fStreamOptions
	fPrompt
	fPromptEmbeds
	fMessages
	fInput
	fInstructions
	fSystem
	fTools
	fToolChoice
	fMaxTokens
	fMaxCompletionTokens
	fMaxOutputTokens
	fMinTokens
	fN
	fBestOf
	fUseBeamSearch
	fEcho
	fLogprobs
	fTopLogprobs
	fPromptLogprobs
	fStore
	fBackground
	fPreviousResponse
	fPreviousMessages
	fConversation
	fSession
	fCacheKey
	fUser
	fMetadata
	fPriority
	fSalt
	fKVTransfer
	fAddSpecialTokens
	fAddGenerationPrompt
	fContinueFinalMessage
	fChatTemplate
	fChatTemplateKwargs
	fDocuments
	fReasoningEffort
	fReasoning
	fThinking
	fOutputConfig
	fResponseFormat
	fText
	fTruncatePromptTokens
	fTruncationSide
	fTruncation
	fPadding
	fMediaKwargs
	fProcessorKwargs
	fReturnTokenIDs
	fields
)

// The parser keeps a bit for each field.
const _ = uint(64 - fields)

// names has the name of each field. The table is also the order of the members in the
// text that is rendered, so that equal prompts give equal texts.
var names = [fields]string{
	fModel:                "model",
	fStream:               "stream",
	fStreamOptions:        "stream_options",
	fPrompt:               "prompt",
	fPromptEmbeds:         "prompt_embeds",
	fMessages:             "messages",
	fInput:                "input",
	fInstructions:         "instructions",
	fSystem:               "system",
	fTools:                "tools",
	fToolChoice:           "tool_choice",
	fMaxTokens:            "max_tokens",
	fMaxCompletionTokens:  "max_completion_tokens",
	fMaxOutputTokens:      "max_output_tokens",
	fMinTokens:            "min_tokens",
	fN:                    "n",
	fBestOf:               "best_of",
	fUseBeamSearch:        "use_beam_search",
	fEcho:                 "echo",
	fLogprobs:             "logprobs",
	fTopLogprobs:          "top_logprobs",
	fPromptLogprobs:       "prompt_logprobs",
	fStore:                "store",
	fBackground:           "background",
	fPreviousResponse:     "previous_response_id",
	fPreviousMessages:     "previous_input_messages",
	fConversation:         "conversation",
	fSession:              "session_id",
	fCacheKey:             "prompt_cache_key",
	fUser:                 "user",
	fMetadata:             "metadata",
	fPriority:             "priority",
	fSalt:                 "cache_salt",
	fKVTransfer:           "kv_transfer_params",
	fAddSpecialTokens:     "add_special_tokens",
	fAddGenerationPrompt:  "add_generation_prompt",
	fContinueFinalMessage: "continue_final_message",
	fChatTemplate:         "chat_template",
	fChatTemplateKwargs:   "chat_template_kwargs",
	fDocuments:            "documents",
	fReasoningEffort:      "reasoning_effort",
	fReasoning:            "reasoning",
	fThinking:             "thinking",
	fOutputConfig:         "output_config",
	fResponseFormat:       "response_format",
	fText:                 "text",
	fTruncatePromptTokens: "truncate_prompt_tokens",
	fTruncationSide:       "truncation_side",
	fTruncation:           "truncation",
	fPadding:              "padding",
	fMediaKwargs:          "media_io_kwargs",
	fProcessorKwargs:      "mm_processor_kwargs",
	fReturnTokenIDs:       "return_token_ids",
}

var byName = func() map[string]field {
	m := make(map[string]field, fields)
	for f, name := range names {
		if name != "" {
			m[name] = field(f)
		}
	}
	return m
}()

// rendering lists the members that decide the tokens of a chat, by route, the messages
// first. They are what the renderers of vLLM 0.32 read of a request.
var rendering = [routes][]field{
	Chat: {
		fMessages, fTools, fToolChoice, fAddSpecialTokens, fAddGenerationPrompt, fContinueFinalMessage,
		fChatTemplate, fChatTemplateKwargs, fDocuments, fReasoningEffort, fResponseFormat,
		fTruncatePromptTokens, fTruncationSide, fMediaKwargs, fProcessorKwargs,
	},
	Responses: {
		fInput, fInstructions, fTools, fToolChoice, fPreviousMessages, fChatTemplateKwargs,
		fReasoning, fText, fTruncation, fMediaKwargs, fProcessorKwargs,
	},
	Messages: {
		fMessages, fSystem, fTools, fToolChoice, fThinking, fOutputConfig, fChatTemplateKwargs,
	},
}

// Route is an OpenAI route whose bodies this package reads.
type Route uint8

// The routes. Other is a route whose body is passed on unread.
const (
	Other       Route = iota
	Completions       // POST /v1/completions
	Chat              // POST /v1/chat/completions
	Responses         // POST /v1/responses
	Messages          // POST /v1/messages, Anthropic's
	Embeddings        // POST /v1/embeddings
	Tokenize          // POST /tokenize
	routes
)

var routePaths = [routes]string{
	Completions: "/v1/completions",
	Chat:        "/v1/chat/completions",
	Responses:   "/v1/responses",
	Messages:    "/v1/messages",
	Embeddings:  "/v1/embeddings",
	Tokenize:    "/tokenize",
}

// Path returns the path of the route. It is empty for Other.
func (r Route) Path() string {
	if r >= routes {
		return ""
	}
	return routePaths[r]
}

// String returns the path, or "other".
func (r Route) String() string {
	if p := r.Path(); p != "" {
		return p
	}
	return "other"
}

// Generates reports whether an answer of the route has tokens that the engine computes.
func (r Route) Generates() bool {
	return r == Completions || r == Chat || r == Responses || r == Messages
}
