package lint

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestPackagesShowTheLayers keeps the table of docs/packages.md and layers() equal.
func TestPackagesShowTheLayers(t *testing.T) {
	data := readDocument(t, "packages.md")
	name := regexp.MustCompile("`([^`]+)`")
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (.*) \| .* \| (.*) \|$`).FindAllStringSubmatch(data, -1) {
		for _, dir := range name.FindAllStringSubmatch(m[1], -1) {
			rows[dir[1]] = m[2]
		}
	}
	for _, l := range layers() {
		dir := l.dir
		row, ok := rows[dir]
		if !ok {
			t.Errorf("docs/packages.md has no row of %s", dir)
			continue
		}
		var shown []string
		for _, m := range name.FindAllStringSubmatch(row, -1) {
			shown = append(shown, m[1])
		}
		want := slices.Sorted(slices.Values(l.may))
		slices.Sort(shown)
		if !slices.Equal(shown, want) {
			t.Errorf("%s may import %v, docs/packages.md says %q", dir, want, row)
		}
	}
}

// TestPackagesNamesEveryPackage requires a row of docs/packages.md for each package, or its last
// element in the row of the nearest directory above it that has one.
func TestPackagesNamesEveryPackage(t *testing.T) {
	name := regexp.MustCompile("`([^`]+)`")
	rows := map[string][]string{} // directory → every name in its row
	for _, m := range regexp.MustCompile(`(?m)^\| (.*) \| (.*) \| .* \|$`).FindAllStringSubmatch(readDocument(t, "packages.md"), -1) {
		var named []string
		for _, n := range name.FindAllStringSubmatch(m[1]+m[2], -1) {
			named = append(named, n[1])
		}
		for _, dir := range name.FindAllStringSubmatch(m[1], -1) {
			rows[dir[1]] = named
		}
	}
	packages := map[string]bool{}
	for s := range loadRepository(t).goFiles {
		packages[s.dir()] = true
	}
	for dir := range packages {
		above := dir
		for rows[above] == nil && above != "." {
			above = path.Dir(above)
		}
		if above != dir && !slices.Contains(rows[above], path.Base(dir)) {
			t.Errorf("docs/packages.md has no row of %s, and the row of %s does not name `%s`", dir, above, path.Base(dir))
		}
	}
}

func TestFormatsDocumentHasTheRightKeysAndHashes(t *testing.T) {
	text := readDocument(t, "formats.md")
	ns := kv.Namespace{
		Model: "tiny", Weights: "w0", DType: "bfloat16", Layers: 2, OuterDim: 2, BlockSize: 4, InnerDim: 64, DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "vllm-1",
	}
	hybrid := ns
	hybrid.Groups = []kv.Group{
		{Kind: "sliding", Window: 8, BlockSize: 4, BlockBytes: 2048, Layers: 1}, {Kind: "full", BlockSize: 4, BlockBytes: 2048, Layers: 1, Eagle: true},
	}
	keyer := kv.NewKeyer()
	root := keyer.Root(ns.ID(), "", "")
	first := keyer.Next(root, []uint32{1, 2, 3, 4}, nil)
	var hasher kv.Hasher
	locals := hasher.AppendLocals(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 4, kv.LocalSeed("", ""))
	for _, want := range []string{
		fmt.Sprintf("| namespace id | `%s` |", ns.ID()),
		fmt.Sprintf("| namespace id with groups sliding, 8, 4, 2048, 1, false and full, 0, 4, 2048, 1, true | `%s` |", hybrid.ID()),
		fmt.Sprintf("| key_0, no LoRA, no salt | `%s` |", root),
		fmt.Sprintf("| key_1, tokens 1 2 3 4 | `%s` |", first),
		fmt.Sprintf("| key_2, tokens 5 6 7 8 | `%s` |", keyer.Next(first, []uint32{5, 6, 7, 8}, nil)),
		fmt.Sprintf("| key_0, LoRA adapter-a, salt tenant-a | `%s` |", keyer.Root(ns.ID(), "adapter-a", "tenant-a")),
		fmt.Sprint(uint64(locals[0])),
		fmt.Sprint(uint64(kv.AppendSequence(nil, locals)[1])),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the document does not say %q", want)
		}
	}
}

// TestArchitectureFitsInAHead bounds ARCHITECTURE.md: what is longer has a page in docs.
func TestArchitectureFitsInAHead(t *testing.T) {
	data, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(data), "\n"); n >= 250 {
		t.Errorf("ARCHITECTURE.md has %d lines, limit 249", n)
	}
}

// TestDecisionsAreListed keeps the index of docs/decisions whole.
func TestDecisionsAreListed(t *testing.T) {
	index := readDocument(t, "decisions/README.md")
	pages, err := os.ReadDir("../../docs/decisions")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if p.Name() != "README.md" && strings.Count(index, "]("+p.Name()+")") != 1 {
			t.Errorf("docs/decisions/README.md must list %s once", p.Name())
		}
	}
}

// TestDecisionsNameCodeThatExists looks for the directories and files that a
// page names after "In the code": a file lies in the directory named before it.
func TestDecisionsNameCodeThatExists(t *testing.T) {
	const marker = "**In the code.**"
	root := os.DirFS("../..")
	for _, s := range loadRepository(t).sources {
		if path.Dir(s.path) != "docs/decisions" || path.Base(s.path) == "README.md" {
			continue
		}
		_, code, ok := strings.Cut(string(s.data), marker)
		if !ok {
			t.Errorf("%s: no paragraph %q", s.path, marker)
		}
		dir := ""
		for _, m := range regexp.MustCompile("`([a-z0-9_./-]+)`").FindAllStringSubmatch(code, -1) {
			info, err := fs.Stat(root, m[1])
			if err != nil {
				info, err = fs.Stat(root, path.Join(dir, m[1]))
			}
			switch {
			case err != nil:
				t.Errorf("%s: there is no %s, nor one in %q", s.path, m[1], dir)
			case info.IsDir():
				dir = m[1]
			}
		}
	}
}

// TestWhereToLookNamesCodeThatExists looks for the files that docs/packages.md names under "Where to
// look", and in each for the declarations that stand in parentheses after it. A file without a
// directory lies in that of the file before it.
func TestWhereToLookNamesCodeThatExists(t *testing.T) {
	_, section, _ := strings.Cut(readDocument(t, "packages.md"), "\n## Where to look\n")
	root, dir, declarations := os.DirFS("../.."), "", 0
	declared := regexp.MustCompile("`(?:\\w+\\.)?(\\w+)`")
	for _, m := range regexp.MustCompile("`([a-z0-9_./-]+\\.(?:go|py|c))`(?:\\s*\\(([^)]*)\\))?").FindAllStringSubmatch(section, -1) {
		file := m[1]
		if !strings.Contains(file, "/") {
			file = path.Join(dir, file)
		}
		dir = path.Dir(file)
		data, err := fs.ReadFile(root, file)
		if err != nil {
			t.Errorf("docs/packages.md: %v", err)
		}
		for _, name := range declared.FindAllStringSubmatch(m[2], -1) {
			declarations++
			if !regexp.MustCompile(`(?m)^\s*(?:func|type|def|class|int) .*\b` + name[1] + `\b`).Match(data) {
				t.Errorf("docs/packages.md: %s does not declare %s", file, name[1])
			}
		}
	}
	if declarations < 30 {
		t.Errorf("only %d declarations were looked for", declarations)
	}
}

// TestDocumentLinksLeadSomewhere follows every relative link of every document
// to a file, and to a heading where the link names one.
func TestDocumentLinksLeadSomewhere(t *testing.T) {
	repo, links := loadRepository(t), 0
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, s := range repo.sources {
		if path.Ext(s.path) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(s.data), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			name, anchor, _ := strings.Cut(m[1], "#")
			file := path.Join(path.Dir(s.path), name)
			if name == "" {
				file = s.path
			}
			data, err := fs.ReadFile(os.DirFS("../.."), file)
			if err != nil {
				if _, err = fs.Stat(os.DirFS("../.."), file); err != nil {
					t.Errorf("%s: link %s: %v", s.path, m[1], err)
				}
				continue
			}
			if anchor != "" && !slices.Contains(anchors(string(data)), anchor) {
				t.Errorf("%s: link %s: no such heading", s.path, m[1])
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were followed", links)
	}
}

// anchors lists the names that GitHub gives to the headings of a document.
func anchors(text string) []string {
	var found []string
	text = regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(text, "")
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found = append(found, strings.ReplaceAll(name, " ", "-"))
	}
	return found
}
