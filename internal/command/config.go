package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/command/completion"
	"github.com/blockyard-ai/blockyard/internal/command/configfile"
	"github.com/blockyard-ai/blockyard/internal/command/manpage"
	"github.com/blockyard-ai/blockyard/router/config"
)

// fileValues are the values of --config for one command, by the names of flags and of the router's
// settings.
type fileValues map[string]configfile.Value

// readConfig reads the file of the flag --config, and has kong take the values for flags that
// neither the command line nor a variable sets. It returns nil without a file.
func readConfig(k *kong.Context, section string) (fileValues, error) {
	at := slices.IndexFunc(k.Flags(), func(f *kong.Flag) bool { return f.Name == "config" })
	path := fmt.Sprint(k.FlagValue(k.Flags()[at]))
	if path == "" {
		return nil, nil
	}
	f, err := configfile.Load(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	other := configfile.Sections[0]
	if other == section {
		other = configfile.Sections[1]
	}
	values, err := f.For(section, configNames(k.Model, section), configNames(k.Model, other))
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	k.AddResolver(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		v, ok := values[flag.Name]
		if !ok || setByVariable(flag) || flag.Group == nil {
			return nil, nil
		}
		return v.Any, nil
	}))
	return values, nil
}

// configNames returns the names that a file may have for a command: its flags, and the router's
// settings by their names in a document.
func configNames(app *kong.Application, section string) (names []string) {
	settings := config.Settings()
	for _, command := range app.Children {
		if command.Name != section {
			continue
		}
		for _, f := range command.Flags {
			if f.Name != "help" && f.Name != "config" && (section != "router" || settingOf(settings, f.Name) == nil) {
				names = append(names, f.Name)
			}
		}
	}
	if section == "router" {
		for i := range settings {
			names = append(names, settings[i].Name)
		}
	}
	return names
}

// setByVariable reports whether a variable of the environment sets a flag.
func setByVariable(f *kong.Flag) bool {
	return slices.ContainsFunc(f.Envs, func(name string) bool { _, set := os.LookupEnv(name); return set })
}

// document returns the router's settings of --router-config or --config.
func (c *Router) document() (from config.Sources, err error) {
	settings := make(map[string]any)
	for _, s := range config.Settings() {
		if v, ok := c.file[s.Name]; ok {
			settings[s.Name] = v.Raw
		}
	}
	switch {
	case len(settings) == 0 && c.File == "":
		return from, nil
	case len(settings) == 0:
		from.Name = c.File
		if from.Document, err = os.ReadFile(c.File); err != nil {
			return from, fmt.Errorf("--router-config: %w", err)
		}
		return from, nil
	case c.File != "":
		return from, fmt.Errorf("--router-config %s: the section router of %s has settings too; want them in one file", c.File, c.ConfigFile)
	}
	from.Name = c.ConfigFile
	if from.Document, err = json.Marshal(settings); err != nil {
		return from, fmt.Errorf("--config %s: %w", c.ConfigFile, err)
	}
	return from, nil
}

// configCmd is "blockyard config".
type configCmd struct {
	Print struct {
		Agent  printAgent  `cmd:"" help:"Show the settings of blockyard agent. It takes the agent's flags."`
		Router printRouter `cmd:"" help:"Show the settings of blockyard router. It takes the router's flags."`
	} `cmd:"" help:"Show every setting with its value and where the value comes from."`
	Check configCheck `cmd:"" help:"Check a file of --config for agent and router."`
}

// printAgent is "blockyard config print agent".
type printAgent struct {
	Agent
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the agent's settings. The error is that with which the agent would not start.
func (c *printAgent) Run(stdout io.Writer) error {
	cfg, s, err := c.resolveSettings(os.Environ())
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	for i := range s.notes {
		s.notes[i].Name = strings.ReplaceAll(s.notes[i].Name, "_", "-")
	}
	return printNotes(stdout, s.notes, c.JSON)
}

// printRouter is "blockyard config print router".
type printRouter struct {
	Router
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the router's settings. The error is that with which the router would not start.
func (c *printRouter) Run(stdout io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	notes := slices.Clone(c.settings.plain)
	given := make(map[string]config.Given)
	for _, g := range c.settings.given {
		given[g.Name] = g
	}
	for _, s := range config.Settings() {
		n := note{s.Name, s.CommandDefault(), fromDefault}
		if g, ok := given[s.Name]; ok {
			n.Value, n.Source = g.Value, g.Source
		}
		notes = append(notes, n)
	}
	return printNotes(stdout, notes, c.JSON)
}

// printNotes writes values with their sources, ordered by name.
func printNotes(w io.Writer, notes []note, asJSON bool) error {
	slices.SortFunc(notes, func(a, b note) int { return strings.Compare(a.Name, b.Name) })
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(notes)
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "SETTING\tVALUE\tFROM")
	for _, n := range notes {
		if n.Value == "" || n.Value == `""` {
			n.Value = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", n.Name, n.Value, n.Source)
	}
	return table.Flush()
}

// configCheck is "blockyard config check".
type configCheck struct {
	File string `arg:"" type:"path" help:"YAML file."`
}

// Run checks the file as both commands would read it, with the variables of the environment.
func (c *configCheck) Run(ctx context.Context, k *kong.Context, b build, stdout io.Writer) error {
	var errs []error
	for _, section := range configfile.Sections {
		var text bytes.Buffer
		if status := Product(b.Version).Run(ctx, []string{"config", "print", section, "--config", c.File}, io.Discard, &text); status != 0 {
			errs = append(errs, fmt.Errorf("%s: %s%s", section, c.origin(k, section, text.String()), strings.TrimPrefix(strings.TrimSpace(text.String()), "blockyard: ")))
			continue
		}
		if _, err := fmt.Fprintf(stdout, "%s: %s: ok\n", c.File, section); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// origin returns the line of the file with the flag that an error is about, as the start of a
// message; empty when the error names no flag of the file.
func (c *configCheck) origin(k *kong.Context, section, text string) string {
	f, err := configfile.Load(c.File)
	if err != nil {
		return ""
	}
	names := configNames(k.Model, section)
	values, err := f.For(section, names, append(configNames(k.Model, "agent"), configNames(k.Model, "router")...))
	_, flag, _ := strings.Cut(text, "--")
	flag, _, _ = strings.Cut(flag, ":")
	if v, ok := values[flag]; ok && err == nil {
		return v.Origin + ": "
	}
	return ""
}

// manCmd is "blockyard man".
type manCmd struct {
	Page string `arg:"" optional:"" help:"Command whose page to print. Default: the program's own page."`
	Dir  string `type:"path" placeholder:"DIR" help:"Write all pages to a directory, such as /usr/share/man/man1."`
}

// Run writes the page to stdout, or all pages to --dir.
func (c *manCmd) Run(k *kong.Context, stdout io.Writer) error {
	pages := manpage.Pages(k.Model)
	if c.Dir == "" {
		page, ok := pages[strings.TrimSuffix(k.Model.Name+"-"+c.Page, "-")+".1"]
		if !ok {
			return fmt.Errorf("page %.64q: no such command; want one of --help", c.Page)
		}
		_, err := stdout.Write(page)
		return err
	}
	if c.Page != "" {
		return fmt.Errorf("page %.64q: --dir writes all pages; want one of both", c.Page)
	}
	for name, page := range pages {
		if err := os.WriteFile(filepath.Join(c.Dir, name), page, 0o644); err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
	}
	return nil
}

// completionCmd is "blockyard completion".
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run writes the script to stdout.
func (c *completionCmd) Run(k *kong.Context, stdout io.Writer) error {
	_, err := io.WriteString(stdout, completion.Script(k.Model, c.Shell))
	return err
}
