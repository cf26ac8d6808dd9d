// Package config makes options of the environment: it checks each variable by what its kind of value must be, and has
// one form of error for all of them.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
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

// A variable is one of the environment's. Its kind names one of the checks, or is "" for a path that is looked at
// later.
type variable struct{ name, value, kind, help string }

// variables are all there are, with their defaults and what -h says of them.
var variables = []variable{
	{"WEIR_LISTEN", ":8080", "address", "where to serve, host:port"},
	{"WEIR_ADVERTISE", "", "reachable", "how peers reach this node, host:port; its name among them (default: found out)"},
	{"WEIR_PEERS", "", "nodes", "all nodes of the cluster, host:port,host:port,... (default: this node alone)"},
	{"WEIR_PEERS_SRV", "", "name", "or the DNS name whose SRV records list them"},
	{"WEIR_DNS_SERVER", "", "host", "whom to ask for it, host or host:port (default: the system's servers)"},
	{"WEIR_PEERS_REFRESH", "10s", "refresh", "how often to ask"},
	{"WEIR_PEER_SECRET", "", "secrets", "what nodes know each other by; two, comma-separated, while it is replaced"},
	{"WEIR_INSECURE_PEERS", "false", "bool", "serve without a secret or certificates, though peers are on a network"},
	{"WEIR_PEER_TIMEOUT", "500ms", "positive", "how long a check may wait for another node"},
	{"WEIR_FAILURE_POLICY", "local", "policy", "while the owner of a limit is away: local (count here), open or closed"},
	{"WEIR_BATCH_WINDOW", "500us", "positive", "how long checks for one peer gather at most"},
	{"WEIR_BATCH_LIMIT", "1000", "batch", "how many do, 1 to 1000"},
	{"WEIR_GLOBAL_INTERVAL", "100ms", "interval", "how often nodes tell each other of GLOBAL limits"},
	{"WEIR_GLOBAL_SLACK", "0.01", "fraction", "the part of a GLOBAL limit that may pass beyond it, 0 to 1"},
	{"WEIR_CACHE_SIZE", "1000000", "count", "limits to remember at most"},
	{"WEIR_MAX_CONNS", "10000", "count", "client connections at most"},
	{"WEIR_SNAPSHOT", "", "file",
		"file to keep counts in over a restart, those that no other node takes over (default: none)"},
	{"WEIR_DRAIN_DELAY", "0s", "span", "on SIGTERM, time to serve on while /readyz answers 503"},
	{"WEIR_SHUTDOWN_TIMEOUT", "8s", "span", "after that, time to hand over limits and finish requests"},
	{"WEIR_TLS_CERT", "", "", "file with this node's certificate; with it, everything is TLS"},
	{"WEIR_TLS_KEY", "", "", "file with its key"},
	{"WEIR_TLS_CA", "", "", "file with the authority that signs certificates; with it, clients need one"},
	{"WEIR_LOG_LEVEL", "info", "level", "debug, info, warn or error"},
	{"WEIR_LOG_FORMAT", "json", "format", "json, or console for people"},
}

// Config is the values of all variables: that of WEIR_PEERS_SRV is PeersSRV.
type Config struct {
	Listen, Advertise                                      string
	Peers, PeersSRV, DNSServer, PeerSecret                 string
	PeersRefresh, PeerTimeout, BatchWindow, GlobalInterval time.Duration
	InsecurePeers                                          bool
	FailurePolicy                                          node.Policy
	GlobalSlack                                            float64
	BatchLimit, CacheSize, MaxConns                        int
	Snapshot                                               string
	DrainDelay, ShutdownTimeout                            time.Duration
	TLSCert, TLSKey                                        string
	TLSCA                                                  string `env:"TLS_CA"`
	LogLevel, LogFormat                                    string

	environment map[string]string // with the defaults
}

// Read reads an environment, such as os.Environ returns. The error is that of [Config.Wrong], for the first wrong
// value.
func Read(environment []string) (*Config, error) {
	c := &Config{environment: env.ToMap(environment)}
	for _, v := range variables {
		value := cmp.Or(c.environment[v.name], v.value)
		c.environment[v.name] = value
		if check := checks[v.kind]; value != "" && check != nil {
			if err := check(value); err != nil {
				return nil, c.Wrong(v.name, err)
			}
		}
	}
	options := env.Options{Environment: c.environment, Prefix: "WEIR_", UseFieldNameByDefault: true}
	return c, env.ParseWithOptions(c, options)
}

// Wrong returns the error that the value of a variable is no good, and why: NAME="value": why. It is one line, and
// shows no secret, since errors end up in logs.
func (c *Config) Wrong(name string, why error) error {
	value := strconv.Quote(c.environment[name])
	if name == "WEIR_PEER_SECRET" {
		value = "..."
	}
	return fmt.Errorf("%s=%s: %w", name, value, why)
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
	for _, v := range variables {
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
		known := slices.ContainsFunc(variables, func(v variable) bool { return v.name == name })
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

// MarshalZerologObject logs what a node works with, as far as its operators ask for it.
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
		return nil, errors.New("WEIR_PEER_SECRET is not set, so any caller could change the counts of this cluster: " +
			"set it to the same secret on all nodes (or WEIR_TLS_CA, or WEIR_INSECURE_PEERS=true if the network is safe)")
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

// splitSecrets returns the secrets in the value of WEIR_PEER_SECRET, of which nodes send the first and accept all: one
// at least, which is "" if there is none.
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
