package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxName bounds lora_name and cache_namespace, in bytes.
const maxName = 4096

// checkFields refuses a field that the method does not take.
func (q *routeRequest) checkFields() error {
	v := reflect.ValueOf(q).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if v.Field(i).IsZero() || slices.Contains(strings.Fields(f.Tag.Get("in")), q.Method) {
			continue
		}
		return fmt.Errorf("%s: %s does not take it", f.Tag.Get("json"), q.Method)
	}
	return nil
}

// checkNames refuses texts that are too long.
func (q *routeRequest) checkNames() error {
	for _, name := range []struct {
		field, value string
		most         int
	}{
		{"model", q.Model, kvevent.MaxModel}, {"lora_name", q.LoRAName, maxName}, {"cache_namespace", q.CacheNamespace, maxName},
	} {
		if err := checkLength(name.field, name.value, name.most); err != nil {
			return err
		}
	}
	for i, taint := range q.Constraints.Required {
		if err := checkLength(fmt.Sprintf("routing_constraints.required_taints[%d]", i), taint, kvevent.MaxTaint); err != nil {
			return err
		}
	}
	for taint := range q.Constraints.Preferred {
		if err := checkLength("routing_constraints.preferred_taints", taint, kvevent.MaxTaint); err != nil {
			return err
		}
	}
	return nil
}

// checkRequestID refuses an id that a header of an answer cannot carry: HTTP and NATS cut
// blanks off its ends, and clients disagree about bytes that are not ASCII.
func checkRequestID(field, id string) error {
	if err := checkLength(field, id, maxRequestID); err != nil {
		return err
	}
	for i := range len(id) {
		if c := id[i]; c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(id)-1) {
			return fmt.Errorf("%s: byte %d is %#02x: want printable ASCII, with blanks only inside", field, i, c)
		}
	}
	return nil
}

func checkLength(field, value string, most int) error {
	if len(value) > most {
		return fmt.Errorf("%s: %d bytes are more than %d", field, len(value), most)
	}
	return nil
}

// plainError says in words of the interface what encoding/json says in words of
// Go.
func plainError(err error) error {
	var mismatch *json.UnmarshalTypeError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errSlowBody):
		return err
	case errors.As(err, &mismatch):
		field := mismatch.Field
		if field == "" {
			field = "body"
		}
		return fmt.Errorf("%s: want %s, got %s", field, wanted(field, mismatch.Type), mismatch.Value)
	case errors.As(err, &tooLarge):
		return fmt.Errorf("body: want at most %d bytes: %w", tooLarge.Limit, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("body: not a whole JSON value")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// wanted says what a field may be: what its type holds, or less.
func wanted(field string, t reflect.Type) string {
	switch field {
	case "expected_output_tokens":
		return fmt.Sprintf("an integer in 0..%d", math.MaxInt32)
	case "timeout_ms":
		return fmt.Sprintf("an integer in 0..%d", maxTimeout)
	case "decay_fraction":
		return "a number in 0..1"
	}
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
