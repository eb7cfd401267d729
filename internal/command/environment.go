package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/internal/command/doctor"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/router/config"
)

// variablePrefix begins the name of every environment variable of ours.
const variablePrefix = "BLOCKYARD_"

// connectorVariables are the settings of connector/blockyard/settings.py. An agent that
// shares the environment of an engine sees them.
const connectorVariables = "SOCKET WORKER_ID ENABLED LOAD STORE MIN_LOAD_BLOCKS LOOKUP_WAIT_MS MAX_INFLIGHT_BLOCKS" +
	" REQUIRE WEIGHTS NAMESPACE_SALT WANT_EVICTED STATS SERVING_ENDPOINT LOG_LEVEL KV_LAYOUT SHORT_LOADS NATIVE COPY_THREADS"

// scriptVariables are variables of the repository's scripts and tests.
const scriptVariables = "BIN ENVOY SHARED"

// foreignVariable matches variables of tests, the environments that scripts install into, and
// what Kubernetes sets in every container for a service whose name begins with "blockyard".
var foreignVariable = regexp.MustCompile(`^BLOCKYARD_((E2E|TEST)_\w+|[A-Z]+_ENV|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_\w+))$`)

// checkEnvironment returns an error for variables with Blockyard's prefix that no command of app and
// no connector reads. Otherwise a misspelt setting would be ignored in silence. environ is a list of
// NAME=value.
func checkEnvironment(app *kong.Application, environ []string) error {
	known := make(map[string]bool)
	for _, name := range strings.Fields(connectorVariables + " " + scriptVariables) {
		known[variablePrefix+name] = true
	}
	addVariables(known, app.Node)
	for _, s := range config.Settings() { // some have no flag
		for _, name := range s.Env {
			known[name] = true
		}
	}
	var unknown []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, variablePrefix) && !known[name] && !foreignVariable.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("environment variable %s: unknown; --help lists those that are read", strings.Join(unknown, ", "))
}

// addVariables adds to known the names of the variables that set flags of a command, or of the
// commands below it.
func addVariables(known map[string]bool, node *kong.Node) {
	for _, f := range node.Flags {
		for _, name := range f.Envs {
			known[name] = true
		}
	}
	for _, child := range node.Children {
		addVariables(known, child)
	}
}

// natsFlags are the flags for the login to NATS. The flag for the server itself belongs
// to the command.
type natsFlags struct {
	User     string `group:"NATS login" log:"-" name:"nats-user" placeholder:"NAME" env:"BLOCKYARD_NATS_USER" help:"User of the NATS login."`
	Password string `group:"NATS login" log:"-" name:"nats-password" placeholder:"TEXT" env:"BLOCKYARD_NATS_PASSWORD" help:"Password of --nats-user. Other users of this machine can see a flag; they cannot see the variable."`
	Token    string `group:"NATS login" log:"-" name:"nats-token" placeholder:"TEXT" env:"BLOCKYARD_NATS_TOKEN" help:"Token of the NATS login. Prefer the variable to the flag."`
	Nkey     string `group:"NATS login" log:"-" name:"nats-nkey" placeholder:"FILE" env:"BLOCKYARD_NATS_NKEY" help:"File with the nkey seed of the NATS user."`
	Creds    string `group:"NATS login" log:"-" name:"nats-creds" placeholder:"FILE" env:"BLOCKYARD_NATS_CREDS" help:"File with JWT and seed of the NATS user."`
	CA       string `group:"NATS login" log:"-" name:"nats-tls-ca" placeholder:"FILE" env:"BLOCKYARD_NATS_TLS_CA" help:"PEM certificates of the authorities that may sign the NATS server's certificate. Default: those of the system."`
	Cert     string `group:"NATS login" log:"-" name:"nats-tls-cert" placeholder:"FILE" env:"BLOCKYARD_NATS_TLS_CERT" help:"PEM certificate that the NATS server asks for."`
	Key      string `group:"NATS login" log:"-" name:"nats-tls-key" placeholder:"FILE" env:"BLOCKYARD_NATS_TLS_KEY" help:"PEM key of --nats-tls-cert."`
	Insecure bool   `group:"NATS login" log:"-" name:"nats-tls-insecure" env:"BLOCKYARD_NATS_TLS_INSECURE" help:"Accept any certificate of the NATS server."`
}

// resolve returns the URL of the NATS server, empty when none is named, and the settings to log in
// with. url is the flag's; flags win over Dynamo's variables. The error names a flag that has no
// effect without a server.
func (f *natsFlags) resolve(url string) (string, natsauth.Settings, error) {
	server, auth, err := natsauth.Resolve(url, natsauth.Settings{
		User: f.User, Password: natsauth.Secret(f.Password), Token: natsauth.Secret(f.Token),
		SeedFile: f.Nkey, Creds: f.Creds,
		CA: f.CA, Cert: f.Cert, Key: f.Key, Insecure: f.Insecure,
	}, os.Getenv)
	if err == nil && server == "" {
		err = f.unused("--nats")
	}
	return server, auth, err
}

// unused returns an error for the first login flag that is set, nil when none is. The caller has
// found that login flags have no effect; want completes the error with the flag that would change
// that.
func (f *natsFlags) unused(want string) error {
	for _, v := range []struct {
		flag string
		set  bool
	}{
		{"user", f.User != ""}, {"password", f.Password != ""}, {"token", f.Token != ""}, {"nkey", f.Nkey != ""}, {"creds", f.Creds != ""},
		{"tls-ca", f.CA != ""}, {"tls-cert", f.Cert != ""}, {"tls-key", f.Key != ""}, {"tls-insecure", f.Insecure},
	} {
		if v.set {
			return fmt.Errorf("--nats-%s: has no effect without %s", v.flag, want)
		}
	}
	return nil
}

// doctorCmd is "blockyard doctor".
type doctorCmd struct {
	doctor.Command
	natsFlags
}

// AfterApply is called by kong when it has parsed the flags. It checks the environment for misspelt
// variables.
func (c *doctorCmd) AfterApply(k *kong.Context) error { return checkEnvironment(k.Model, os.Environ()) }

// Run checks what the flags name and prints the findings.
func (c *doctorCmd) Run(ctx context.Context, stdout io.Writer) (err error) {
	if c.NATS, c.Auth, err = c.resolve(c.NATS); err != nil {
		return err
	}
	return c.Command.Run(ctx, stdout)
}
