package manpage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Pages returns the pages by the names of their files, such as blockyard-agent.1.
func Pages(app *kong.Application) map[string][]byte {
	pages := map[string][]byte{app.Name + ".1": page(app, app.Node)}
	for _, command := range visible(app.Node) {
		pages[app.Name+"-"+command.Name+".1"] = page(app, command)
	}
	return pages
}

// visible returns the commands below a node that are not hidden.
func visible(node *kong.Node) []*kong.Node {
	return slices.DeleteFunc(slices.Clone(node.Children), func(n *kong.Node) bool { return n.Hidden })
}

// page returns the page of the program or of one of its commands.
func page(app *kong.Application, node *kong.Node) []byte {
	var b strings.Builder
	name := strings.ReplaceAll(node.FullPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"\" \"User Commands\"\n", quoted(strings.ToUpper(name)))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escaped(name), line(firstSentence(node.Help)))
	section(&b, "SYNOPSIS", synopsis(node))
	section(&b, "DESCRIPTION", paragraphs(strings.TrimPrefix(strings.TrimPrefix(node.Help, firstSentence(node.Help)), ".")), paragraphs(node.Detail))
	if node == app.Node {
		commands(&b, node)
		writeFlags(&b, node, 'H')
	} else {
		writeFlags(&b, node, 'H')
		for _, child := range visible(node) {
			below(&b, child, node)
		}
	}
	var also []string
	for _, other := range append([]*kong.Node{app.Node}, visible(app.Node)...) {
		if other != node {
			also = append(also, ".BR "+escaped(strings.ReplaceAll(other.FullPath(), " ", "-"))+" (1)")
		}
	}
	section(&b, "SEE ALSO", strings.Join(also, ",\n")+"\n")
	return []byte(b.String())
}

// section writes a section of texts, unless all are empty.
func section(b *strings.Builder, title string, texts ...string) {
	if text := strings.Join(texts, ""); text != "" {
		fmt.Fprintf(b, ".SH %s\n%s", title, text)
	}
}

// synopsis returns the command with its arguments.
func synopsis(node *kong.Node) string {
	text := ".B " + escaped(node.FullPath()) + "\n"
	if len(node.Flags) > 0 {
		text += "[\\fIflags\\fR]\n"
	}
	for _, p := range node.Positional {
		text += escaped(p.Summary()) + "\n"
	}
	if len(visible(node)) > 0 {
		text += "\\fIcommand\\fR\n"
	}
	return text
}

// commands writes the list of commands of the program.
func commands(b *strings.Builder, node *kong.Node) {
	b.WriteString(".SH COMMANDS\n")
	for _, child := range visible(node) {
		fmt.Fprintf(b, ".TP\n.BR %s (1)\n%s\n", escaped(strings.ReplaceAll(child.FullPath(), " ", "-")), line(child.Help))
	}
}

// below writes the section of a command that is below the page's, and of those below it.
func below(b *strings.Builder, node, of *kong.Node) {
	fmt.Fprintf(b, ".SH %s\n%s.PP\n%s\n", quoted(strings.ToUpper(strings.TrimPrefix(node.FullPath(), of.FullPath()+" "))), synopsis(node), line(node.Help))
	b.WriteString(paragraphs(node.Detail))
	writeFlags(b, node, 'S')
	for _, child := range visible(node) {
		below(b, child, of)
	}
}

// writeFlags writes the flags of a command itself, by group. kind is H for sections, S for subsections.
func writeFlags(b *strings.Builder, node *kong.Node, kind byte) {
	var groups []string
	byGroup := make(map[string][]*kong.Flag)
	for _, f := range node.Flags {
		title := "Flags"
		switch {
		case f.Hidden:
			continue
		case f.Group != nil:
			title = f.Group.Title
		}
		if byGroup[title] == nil {
			groups = append(groups, title)
		}
		byGroup[title] = append(byGroup[title], f)
	}
	for _, g := range groups {
		fmt.Fprintf(b, ".S%c %s\n", kind, quoted(strings.ToUpper(g)))
		for _, f := range byGroup[g] {
			writeFlag(b, f)
		}
	}
}

// writeFlag writes the entry of a flag: its names and value, help, default and variables.
func writeFlag(b *strings.Builder, f *kong.Flag) {
	name := "\\fB\\-\\-" + escaped(f.Name) + "\\fR"
	if f.Short != 0 {
		name = "\\fB\\-" + string(f.Short) + "\\fR, " + name
	}
	if f.Tag.Negatable != "" {
		name += ", \\fB\\-\\-no\\-" + escaped(f.Name) + "\\fR"
	} else if !f.IsBool() {
		name += "=\\fI" + escaped(strings.Trim(f.FormatPlaceHolder(), `"`)) + "\\fR"
	}
	fmt.Fprintf(b, ".TP\n%s\n%s\n", name, line(f.Help))
	if f.HasDefault && f.Default != "" && !f.IsBool() {
		fmt.Fprintf(b, "Default: %s.\n", escaped(f.Default))
	}
	if len(f.Envs) > 0 {
		fmt.Fprintf(b, "Variable: %s.\n", escaped(strings.Join(f.Envs, ", ")))
	}
}

// firstSentence returns the first sentence of a help text without its end.
func firstSentence(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(strings.SplitN(first, "\n", 2)[0], ".")
}

// paragraphs returns a text with a break between its paragraphs; empty for none.
func paragraphs(text string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(text, "\n\n") {
		if part = strings.TrimSpace(part); part != "" {
			b.WriteString(".PP\n" + line(part) + "\n")
		}
	}
	return b.String()
}

// line returns text as one line of a page.
func line(text string) string { return escaped(strings.Join(strings.Fields(text), " ")) }

// escaped returns text whose characters have no meaning to roff.
func escaped(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "^", `\(ha`, "~", `\(ti`, "`", "\\`").Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

// quoted returns text as one argument of a macro.
func quoted(text string) string { return `"` + strings.ReplaceAll(escaped(text), `"`, `\(dq`) + `"` }
