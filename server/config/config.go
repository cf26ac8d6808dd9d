// Package config makes options of the environment: it checks each variable by what its kind of value must be, and has one form
// of error for all of them.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/rs/zerolog"

	"weir/peers"
	"weir/peers/discovery"
	"weir/server"
	"weir/server/node"
)

// Config is the environment. The tags are the whole documentation of -h; is names one of the checks.
type Config struct {
	Listen    string `env:"WEIR_LISTEN" envDefault:":8080" is:"address" help:"where to serve, host:port"`
	Advertise string `env:"WEIR_ADVERTISE" is:"reachable" help:"how peers reach this node, host:port; its name among them (default: found out)"`

	Peers         string        `env:"WEIR_PEERS" is:"nodes" help:"all nodes of the cluster, host:port,host:port,... (default: this node alone)"`
	PeersSRV      string        `env:"WEIR_PEERS_SRV" is:"name" help:"or the DNS name whose SRV records list them"`
	DNSServer     string        `env:"WEIR_DNS_SERVER" is:"host" help:"whom to ask for it, host or host:port (default: the system's servers)"`
	PeersRefresh  time.Duration `env:"WEIR_PEERS_REFRESH" envDefault:"10s" is:"refresh" help:"how often to ask"`
	PeerSecret    string        `env:"WEIR_PEER_SECRET" is:"secrets" help:"what nodes know each other by; two, comma-separated, while it is replaced"`
	InsecurePeers bool          `env:"WEIR_INSECURE_PEERS" envDefault:"false" is:"bool" help:"serve without a secret or certificates, though peers are on a network"`
	PeerTimeout   time.Duration `env:"WEIR_PEER_TIMEOUT" envDefault:"500ms" is:"positive" help:"how long a check may wait for another node"`
	FailurePolicy node.Policy   `env:"WEIR_FAILURE_POLICY" envDefault:"local" is:"policy" help:"while the owner of a limit is away: local (count here), open or closed"`
	BatchWindow   time.Duration `env:"WEIR_BATCH_WINDOW" envDefault:"500us" is:"positive" help:"how long checks for one peer gather at most"`
	BatchLimit    int           `env:"WEIR_BATCH_LIMIT" envDefault:"1000" is:"batch" help:"how many do, 1 to 1000"`

	GlobalInterval time.Duration `env:"WEIR_GLOBAL_INTERVAL" envDefault:"100ms" is:"interval" help:"how often nodes tell each other of GLOBAL limits"`
	GlobalSlack    float64       `env:"WEIR_GLOBAL_SLACK" envDefault:"0.01" is:"fraction" help:"the part of a GLOBAL limit that may pass beyond it, 0 to 1"`

	CacheSize       int           `env:"WEIR_CACHE_SIZE" envDefault:"1000000" is:"count" help:"limits to remember at most"`
	MaxConns        int           `env:"WEIR_MAX_CONNS" envDefault:"10000" is:"count" help:"client connections at most"`
	Snapshot        string        `env:"WEIR_SNAPSHOT" is:"file" help:"file to keep counts in over a restart, those that no other node takes over (default: none)"`
	DrainDelay      time.Duration `env:"WEIR_DRAIN_DELAY" envDefault:"0s" is:"span" help:"on SIGTERM, time to serve on while /readyz answers 503"`
	ShutdownTimeout time.Duration `env:"WEIR_SHUTDOWN_TIMEOUT" envDefault:"8s" is:"span" help:"after that, time to hand over limits and finish requests"`

	TLSCert string `env:"WEIR_TLS_CERT" help:"file with this node's certificate; with it, everything is TLS"`
	TLSKey  string `env:"WEIR_TLS_KEY" help:"file with its key"`
	TLSCA   string `env:"WEIR_TLS_CA" help:"file with the authority that signs certificates; with it, clients need one"`

	LogLevel  string `env:"WEIR_LOG_LEVEL" envDefault:"info" is:"level" help:"debug, info, warn or error"`
	LogFormat string `env:"WEIR_LOG_FORMAT" envDefault:"json" is:"format" help:"json, or console for people"`

	environment map[string]string // with the defaults
}

// Read reads an environment, such as os.Environ returns. The error is that of [Config.Wrong], for the first wrong value.
func Read(environment []string) (*Config, error) {
	c := &Config{environment: env.ToMap(environment)}
	for _, v := range variables() {
		value := cmp.Or(c.environment[v.name], v.value)
		c.environment[v.name] = value
		if check := checks[v.kind]; value != "" && check != nil {
			if err := check(value); err != nil {
				return nil, c.Wrong(v.name, err)
			}
		}
	}
	return c, env.ParseWithOptions(c, env.Options{Environment: c.environment})
}

// Wrong returns the error that the value of a variable is no good, and why: NAME="value": why. It is one line, and shows no
// secret, since errors end up in logs.
func (c *Config) Wrong(name string, why error) error {
	value := strconv.Quote(c.environment[name])
	if name == "WEIR_PEER_SECRET" {
		value = "..."
	}
	return fmt.Errorf("%s=%s: %w", name, value, why)
}

// A variable is one of the environment's, as Config declares it.
type variable struct{ name, value, kind, help string }

// variables lists what Config declares, in its order.
func variables() (list []variable) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if name, ok := f.Tag.Lookup("env"); ok {
			list = append(list, variable{name, f.Tag.Get("envDefault"), f.Tag.Get("is"), f.Tag.Get("help")})
		}
	}
	return list
}

// Usage writes the text of -h.
func Usage(w io.Writer) {
	fmt.Fprint(w, `weir is a rate limiter that services ask over HTTP.

  weir            serve
  weir -health    ask the weir on this machine whether it lives; exit code 0 if so
  weir -version   print the version
  weir -h         print this

Environment:

`)
	for _, v := range variables() {
		help := v.help
		if v.value != "" {
			help += " (default " + v.value + ")"
		}
		fmt.Fprintf(w, "  %-22s %s\n", v.name, help)
	}
}

// WarnUnknown warns of variables that look like ours and aren't: most likely they are misspelt.
func (c *Config) WarnUnknown(log zerolog.Logger) {
	for _, name := range slices.Sorted(maps.Keys(c.environment)) {
		known := slices.ContainsFunc(variables(), func(v variable) bool { return v.name == name })
		if strings.HasPrefix(name, "WEIR_") && !known {
			log.Warn().Str("variable", name).Msg("unknown variable, ignored; weir -h lists the known ones")
		}
	}
}

// Logger makes the log, which goes to w.
func (c *Config) Logger(w io.Writer) zerolog.Logger {
	if c.LogFormat == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, NoColor: !isTerminal(w)}
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	level, _ := zerolog.ParseLevel(c.LogLevel) // which has been checked
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

func isTerminal(w io.Writer) bool {
	f, _ := w.(*os.File)
	info, err := f.Stat() // of nil, too
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// MarshalZerologObject logs what a node works with, where it matters to those who run it.
func (c *Config) MarshalZerologObject(e *zerolog.Event) {
	e.Int("cache_size", c.CacheSize).Int("max_conns", c.MaxConns).Str("failure_policy", string(c.FailurePolicy)).
		Stringer("drain_delay", c.DrainDelay).Stringer("shutdown_timeout", c.ShutdownTimeout).Bool("tls", c.TLSCert != "")
}

// TLS reads the files that the environment names; it returns nil if it names none. The error names the variable.
func (c *Config) TLS() (*server.TLS, error) {
	switch {
	case c.TLSCert == "" && c.TLSKey == "" && c.TLSCA == "":
		return nil, nil
	case c.TLSCert == "":
		return nil, errors.New("WEIR_TLS_CERT is not set, but WEIR_TLS_KEY or WEIR_TLS_CA is")
	case c.TLSKey == "":
		return nil, errors.New("WEIR_TLS_KEY is not set, but WEIR_TLS_CERT is")
	}
	files, err := server.LoadTLS(c.TLSCert, c.TLSKey, c.TLSCA)
	if err != nil {
		return nil, fmt.Errorf("WEIR_TLS_CERT, WEIR_TLS_KEY or WEIR_TLS_CA: %w", err)
	}
	return files, nil
}

// Node returns the options of the node that listens there, in a process of its own. The error names the variable.
func (c *Config) Node(listen netip.AddrPort, files *server.TLS, log zerolog.Logger) (node.Options, error) {
	cluster, err := c.cluster(files)
	return node.Options{
		Listen: listen, Advertise: c.Advertise, Log: log, CacheSize: c.CacheSize, Cluster: cluster,
		Policy: c.FailurePolicy, Snapshot: c.Snapshot, TuneGC: true,
	}, err
}

// cluster returns nil if the environment tells of no cluster.
func (c *Config) cluster(files *server.TLS) (*node.Cluster, error) {
	members, err := discovery.ParseList(c.Peers)
	if err != nil || c.Peers == "" && c.PeersSRV == "" {
		return nil, err
	}
	if c.Peers != "" && c.PeersSRV != "" {
		return nil, c.Wrong("WEIR_PEERS_SRV", errors.New("WEIR_PEERS is set too; set one of them"))
	}
	guarded := c.PeerSecret != "" || c.TLSCA != "" || c.InsecurePeers
	if !guarded && (c.PeersSRV != "" || slices.ContainsFunc(members, discovery.Member.Distant)) {
		return nil, errors.New("WEIR_PEER_SECRET is not set, so any caller could change the counts of this cluster: set it to the same " +
			"secret on all nodes (or WEIR_TLS_CA, or WEIR_INSECURE_PEERS=true if the network is safe)")
	}
	cluster := &node.Cluster{
		Members: members, Refresh: c.PeersRefresh, GlobalInterval: c.GlobalInterval, GlobalSlack: c.GlobalSlack,
		Options: peers.Options{
			Secret: splitSecrets(c.PeerSecret)[0], Timeout: c.PeerTimeout, BatchWindow: c.BatchWindow, BatchLimit: c.BatchLimit,
		},
	}
	if c.PeersSRV != "" {
		cluster.SRV = discovery.NewSRV(c.PeersSRV, c.DNSServer)
	}
	if files != nil {
		cluster.TLS = files.Client
	}
	return cluster, nil
}

// splitSecrets returns the secrets in the value of WEIR_PEER_SECRET, of which nodes send the first and accept all: one at least,
// which is "" if there is none.
func splitSecrets(text string) []string {
	list := strings.Split(text, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// Server returns the options of the doors of a node.
func (c *Config) Server(n *node.Node, files *server.TLS, log zerolog.Logger, version string) server.Options {
	o := server.Options{Node: n, Log: log, Version: version, MaxConns: c.MaxConns, TLS: files}
	if c.PeerSecret != "" {
		o.PeerSecrets = splitSecrets(c.PeerSecret)
	}
	return o
}
