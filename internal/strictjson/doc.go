// Package strictjson decodes the JSON that people and programs send, and says in
// their words what is wrong with it.
//
// Decode takes one value, refuses fields that the target does not have, and
// refuses anything after the value. Its errors name the field and say what is
// wanted, without the names of Go types. Errors of the reader come through as they
// are, so that errors.Is and errors.As work on them.
package strictjson
