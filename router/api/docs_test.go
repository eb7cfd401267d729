package api

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/estimate"
)

// jsonNames are the names of a struct's fields in JSON, nested ones included.
func jsonNames(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			names = append(names, name)
		}
		names = append(names, jsonNames(t.Field(i).Type)...)
	}
	return names
}

// TestDocumentNamesWhatIsSaid: every field of a request and its answers, every header,
// and the statuses are in the document of the interface.
func TestDocumentNamesWhatIsSaid(t *testing.T) {
	text, err := os.ReadFile("../../docs/router-api.md")
	if err != nil {
		t.Fatal(err)
	}
	words := []string{RequestIDHeader, QualityHeader, ScoreHeader, RouterHeader, NATSErrorHeader, NATSErrorCodeHeader,
		RouteSubject("CLUSTER"), "| 400 |", "| 409 |", "| 413 |", "| 503 |", "| 529 |",
		"output_block_added", "prefill_marked", "free_marked", "queue_rejected"}
	// What a request may change has a page of its own.
	own := map[string]bool{}
	for _, name := range jsonNames(reflect.TypeFor[routeRequest]()) {
		own[name] = true
	}
	for _, name := range jsonNames(reflect.TypeFor[routeRequest]().Field(overrideField()).Type) {
		delete(own, name)
	}
	for name := range own {
		words = append(words, name)
	}
	for _, body := range []any{routeAnswer{}, rejectedAnswer{}, markAnswer{}, loadsAnswer{}, overlapsAnswer{}, estimate.WorkerMeasures{}} {
		words = append(words, jsonNames(reflect.TypeOf(body))...)
	}
	if len(words) < 50 {
		t.Errorf("only %d names to look for", len(words))
	}
	for _, word := range words {
		if !strings.Contains(string(text), word) {
			t.Errorf("the document does not mention %q", word)
		}
	}
}

// overrideField is the number of the field of routeRequest with the overridden settings.
func overrideField() int {
	f, ok := reflect.TypeFor[routeRequest]().FieldByName("Override")
	if !ok {
		panic("BUG: there is no such field")
	}
	return f.Index[0]
}
