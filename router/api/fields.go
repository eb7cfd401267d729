package api

import (
	"fmt"
	"math"
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

// wantedFields says what fields may be whose types allow more.
func wantedFields() map[string]string {
	return map[string]string{
		"expected_output_tokens": fmt.Sprintf("an integer in 0..%d", math.MaxInt32),
		"timeout_ms":             fmt.Sprintf("an integer in 0..%d", maxTimeout),
		"decay_fraction":         "a number in 0..1",
	}
}
