// Package openai reads and edits what OpenAI clients send and what servers answer.
//
// [Parse] reads the members of a request body that routing needs, in one pass.
// [Apply] edits top-level members and leaves every other byte unchanged.
// [Scanner] splits a stream of server-sent events. [Event.Inspect] says what an event
// carries: a token, usage, an error. [ParseUsage] reads the usage of a whole answer.
// [Route.ErrorBody] writes errors in the shape that the route's clients expect.
//
// The package reads the bodies of [Completions], [Chat], [Responses], [Messages],
// [Embeddings] and [Tokenize]. docs/front-door.md lists the members that it reads and
// the members that it edits.
//
// Parse accepts a subset of JSON that every engine reads alike: UTF-8, at most
// [MaxDepth] levels, and no member twice of those that routing reads. Parse leaves the
// values of other members alone. Errors are of type *[FieldError] and name the field,
// the value and what is allowed.
//
// The package does no I/O of its own, reads no clock and starts no goroutine. A Request
// may alias the body that it was parsed from: the caller must not change the body while
// the Request is in use. A Scanner and its Events belong to one goroutine. Everything
// else may be used from any goroutine.
package openai
