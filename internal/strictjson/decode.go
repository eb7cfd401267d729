package strictjson

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"strings"
)

// Decode reads one JSON value from r into v. Unknown fields and text after the value are errors.
// what names the value in the error about such text. wanted has, by field, the accepted values of
// fields whose Go types allow more; it may be nil.
func Decode(r io.Reader, v any, what string, wanted map[string]string) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return Explain(err, wanted)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("body: something follows the %s", what)
	}
	return nil
}

// Explain returns an error of reading or decoding JSON in words for a client: it names the field
// and the accepted values, and no Go types. wanted is that of Decode. Other errors come back as
// they are.
func Explain(err error, wanted map[string]string) error {
	var mismatch *json.UnmarshalTypeError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &mismatch):
		field := cmp.Or(mismatch.Field, "body")
		want, ok := wanted[field]
		if !ok {
			want = wantedType(mismatch.Type)
		}
		return fmt.Errorf("%s: want %s, got %s", field, want, mismatch.Value)
	case errors.As(err, &tooLarge):
		return fmt.Errorf("body: want at most %d bytes: %w", tooLarge.Limit, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("body: not a whole JSON value")
	}
	if text, ok := strings.CutPrefix(err.Error(), "json: "); ok {
		return errors.New(text)
	}
	return err
}

// wantedType returns the accepted values of a field of Go type t, as text for an error.
func wantedType(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Uint32:
		return fmt.Sprintf("an integer in 0..%d", uint32(math.MaxUint32))
	case reflect.Uint64:
		return fmt.Sprintf("an integer in 0..%d", uint64(math.MaxUint64))
	case reflect.Float64:
		return fmt.Sprintf("a number in -%g..%g", math.MaxFloat64, math.MaxFloat64)
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Bool:
		return "true or false"
	}
	return "an object"
}
