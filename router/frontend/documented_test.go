package frontend

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/config"
)

var update = flag.Bool("update", false, "write the table of errors in the document anew")

const document = "../../docs/front-door.md"

// TestDocumentHasTheTableOfErrors: the table in the document is that of the errors in the code, and no error is made
// but from one of these.
func TestDocumentHasTheTableOfErrors(t *testing.T) {
	table := "| status, code | cause |\n|---|---|\n"
	for _, e := range knownErrors {
		name := strconv.Itoa(e.status)
		if e.code != "" {
			name += " `" + e.code + "`"
		}
		when := e.when
		if e.retryAfter > 0 {
			when += "; `Retry-After`"
		}
		table += fmt.Sprintf("| %s | %s |\n", name, when)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	written := regexp.MustCompile(`(?m)^\| status, code \| cause \|\n(\|.*\n)+`)
	if n := len(written.FindAll(text, -1)); n != 1 {
		t.Fatalf("%s has %d tables of errors", document, n)
	}
	if *update {
		if err := os.WriteFile(document, written.ReplaceAllLiteral(text, []byte(table)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got := string(written.Find(text)); got != table {
		t.Errorf("%s differs from knownErrors; write it anew with: go test ./router/frontend -run Document -update\n%s", document, got)
	}
	usual := config.CommandDefault()
	if overloaded.status != int(usual.HTTPOverloadStatus) {
		t.Errorf("status %d of an overload is documented, the default is %d", overloaded.status, usual.HTTPOverloadStatus)
	}
	eachNode(t, ".", func(name string, n ast.Node) {
		// An error of the door has a code only from a knownError: the others are a worker's or net/http's.
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "Code" && name != "refuse.go" {
				t.Errorf("%s: an error with a code that is not in knownErrors", name)
			}
		}
	})
}

// TestDocumentHasEveryHeader: the tables of headers name the headers that the code names, and no others.
func TestDocumentHasEveryHeader(t *testing.T) {
	var want []string
	header := regexp.MustCompile(`^"(?i:X-(Request-Id|Blockyard-[A-Za-z-]+|Dynamo-[A-Za-z-]+))"$`)
	for _, dir := range []string{".", "admission"} {
		eachNode(t, dir, func(_ string, n ast.Node) {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && header.MatchString(lit.Value) {
				want = append(want, strings.Trim(lit.Value, `"`))
			}
		})
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Headers\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var got []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z-]+)` \\|").FindAllStringSubmatch(section, -1) {
		got = append(got, row[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("%s has the headers\n%q\nthe code has\n%q", document, got, want)
	}
}

// eachNode calls do with the syntax of the files of a directory, without tests.
func eachNode(t *testing.T, dir string, do func(file string, n ast.Node)) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), dir+"/"+f.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			do(f.Name(), n)
			return true
		})
	}
}
