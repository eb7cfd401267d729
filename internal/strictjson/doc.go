// Package strictjson decodes JSON from people and programs. Its errors use the words of JSON,
// not of Go.
//
// Decode takes one value, refuses fields that the target does not have, and refuses text after
// the value. Its errors name the field and the wanted value, without the names of Go types.
// Errors of the reader are returned unchanged, so that errors.Is and errors.As work on them.
package strictjson
