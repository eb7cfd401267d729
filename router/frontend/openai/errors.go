package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// FieldError says which member of a body is wrong, what it may be, and what it is.
type FieldError struct {
	Field  string // "body" for the body as a whole
	Want   string
	Got    string
	Status int // HTTP status; 0 is 400
}

// Error returns the three parts in one line.
func (e *FieldError) Error() string {
	return e.Field + ": want " + e.Want + ", got " + e.Got
}

// Code returns the HTTP status of the answer.
func (e *FieldError) Code() int {
	if e.Status == 0 {
		return http.StatusBadRequest
	}
	return e.Status
}

var (
	errDepth     = &FieldError{Field: "body", Want: "at most " + strconv.Itoa(MaxDepth) + " levels of arrays and objects", Got: "more"}
	errNotObject = &FieldError{Field: "body", Want: "a JSON object", Got: "another value"}
)

// syntaxError is a body that is no JSON.
type syntaxError struct {
	offset int
	want   string
	end    bool
}

func (e *syntaxError) Error() string {
	if e.end {
		return fmt.Sprintf("want %s at byte %d, got the end", e.want, e.offset)
	}
	return fmt.Sprintf("want %s at byte %d", e.want, e.offset)
}

// bodyError returns the error of a body as a *FieldError.
func bodyError(err error) error {
	var field *FieldError
	var syntax *syntaxError
	switch {
	case errors.As(err, &field):
		return field
	case errors.As(err, &syntax):
		got := "another character"
		if syntax.end {
			got = "the end"
		}
		return &FieldError{Field: "body", Want: "JSON: " + syntax.want + " at byte " + strconv.Itoa(syntax.offset), Got: got}
	}
	return err
}

// shorten returns at most 64 bytes of a value for an error.
func shorten(raw []byte) string {
	const most = 64
	if len(raw) <= most {
		return string(raw)
	}
	return string([]rune(string(raw[:most]))) + "…"
}

// ErrorBody returns an error in OpenAI's shape. An empty kind is chosen by the status.
// The code is the status when code is empty, as vLLM does it. An empty param is null.
func ErrorBody(status int, kind, message, param, code string) []byte {
	type detail struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    any     `json:"code"`
	}
	e := detail{Message: message, Type: kind, Code: status}
	if kind == "" {
		e.Type = kindOf(status)
	}
	if param != "" {
		e.Param = &param
	}
	if code != "" {
		e.Code = code
	}
	return marshal(struct {
		Error detail `json:"error"`
	}{e})
}

// ErrorBody returns an error in the shape of the route: OpenAI's with the type kind, or for Messages
// Anthropic's, whose type follows from the status.
func (r Route) ErrorBody(status int, kind, message, param, code string) []byte {
	if r != Messages {
		return ErrorBody(status, kind, message, param, code)
	}
	type detail struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	return marshal(struct {
		Type  string `json:"type"`
		Error detail `json:"error"`
	}{"error", detail{kindOf(status), message}})
}

// kindOf returns the type of error that both APIs use for a status.
func kindOf(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529: // Anthropic's status of an overload
		return "overloaded_error"
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// marshal encodes a value of plain strings and numbers, which cannot fail.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: openai: " + err.Error())
	}
	return b
}
