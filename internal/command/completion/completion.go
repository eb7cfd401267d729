package completion

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// words are what may follow a command: commands and flags, and the values of flags.
type words struct {
	path   string // the command's words, such as "config print agent"
	next   []string
	values map[string][]string // by flag
	help   map[string]string   // by word
}

// Script returns the script for a shell: bash, zsh or fish.
func Script(app *kong.Application, shell string) string {
	all := collect(nil, app.Node, "")
	if shell == "fish" {
		return fish(app.Name, all)
	}
	return bash(app.Name, all, shell == "zsh")
}

// collect appends the words after node and after each command below it.
func collect(all []words, node *kong.Node, path string) []words {
	w := words{path: path, values: make(map[string][]string), help: make(map[string]string)}
	for _, child := range node.Children {
		if !child.Hidden {
			w.next = append(w.next, child.Name)
			w.help[child.Name] = child.Help
		}
	}
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			flag := "--" + f.Name
			w.next = append(w.next, flag)
			w.help[flag] = f.Help
			for value := range strings.SplitSeq(f.Enum, ",") {
				if value = strings.TrimSpace(value); value != "" {
					w.values[flag] = append(w.values[flag], value)
				}
			}
		}
	}
	for _, p := range node.Positional {
		for value := range strings.SplitSeq(p.Enum, ",") {
			if value = strings.TrimSpace(value); value != "" {
				w.next = append(w.next, value)
			}
		}
	}
	all = append(all, w)
	for _, child := range node.Children {
		if !child.Hidden {
			all = collect(all, child, strings.TrimSpace(path+" "+child.Name))
		}
	}
	return all
}

// bash returns a script for bash, and for zsh by its bashcompinit.
func bash(name string, all []words, zsh bool) string {
	var b strings.Builder
	if zsh {
		fmt.Fprintf(&b, "#compdef %s\nautoload -U +X bashcompinit && bashcompinit\n", name)
	}
	fmt.Fprintf(&b, "_%[1]s() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path= word next values\n"+
		"\t[ \"$cur\" = = ] && cur=\n\t[ \"$prev\" = = ] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"+
		"\tfor word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n\t\tcase \"$path $word\" in\n", name)
	for _, w := range all {
		if w.path != "" {
			parent, last := "", w.path
			if i := strings.LastIndexByte(w.path, ' '); i >= 0 {
				parent, last = w.path[:i], w.path[i+1:]
			}
			fmt.Fprintf(&b, "\t\t%q) path=%q ;;\n", parent+" "+last, w.path)
		}
	}
	b.WriteString("\t\tesac\n\tdone\n\tcase \"$path:$prev\" in\n")
	for _, w := range all {
		for _, flag := range w.next {
			if list := w.values[flag]; len(list) > 0 {
				fmt.Fprintf(&b, "\t%q) values=%q ;;\n", w.path+":"+flag, strings.Join(list, " "))
			}
		}
	}
	b.WriteString("\tesac\n\tcase \"$path\" in\n")
	for _, w := range all {
		fmt.Fprintf(&b, "\t%q) next=%q ;;\n", w.path, strings.Join(w.next, " "))
	}
	fmt.Fprintf(&b, "\tesac\n\tmapfile -t COMPREPLY < <(compgen -W \"${values:-$next}\" -- \"$cur\")\n}\ncomplete -o default -F _%[1]s %[1]s\n", name)
	text := b.String()
	if zsh { // zsh has no mapfile
		text = strings.Replace(text, "mapfile -t COMPREPLY < <(compgen -W \"${values:-$next}\" -- \"$cur\")", "COMPREPLY=($(compgen -W \"${values:-$next}\" -- \"$cur\"))", 1)
	}
	return text
}

// fish returns a script for fish.
func fish(name string, all []words) string {
	var b strings.Builder
	for _, w := range all {
		condition := "__fish_use_subcommand"
		if w.path != "" {
			var parts []string
			for part := range strings.SplitSeq(w.path, " ") {
				parts = append(parts, "__fish_seen_subcommand_from "+part)
			}
			condition = strings.Join(parts, "; and ")
		}
		for _, word := range w.next {
			help := strings.ReplaceAll(w.help[word], "'", `\'`)
			if flag, ok := strings.CutPrefix(word, "--"); ok {
				fmt.Fprintf(&b, "complete -c %s -n '%s' -l %s -d '%s'", name, condition, flag, help)
				if list := w.values[word]; len(list) > 0 {
					fmt.Fprintf(&b, " -xa '%s'", strings.Join(list, " "))
				}
				b.WriteByte('\n')
				continue
			}
			fmt.Fprintf(&b, "complete -c %s -f -n '%s' -a %s -d '%s'\n", name, condition, word, help)
		}
	}
	return b.String()
}
