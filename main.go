// Command weir is a rate limiter that services ask over HTTP. Environment variables configure it; weir -h lists them.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // the container has no zone files

	"github.com/caarlos0/env/v11"
	"github.com/rs/zerolog"

	"weir/global"
	"weir/limits"
	"weir/limits/wire"
	"weir/peers"
	"weir/peers/discovery"
	"weir/server"
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version = "dev"

// config is the environment. The tags are the whole documentation of -h.
type config struct {
	Listen    address   `env:"WEIR_LISTEN" envDefault:":8080" help:"where to serve, host:port"`
	Advertise reachable `env:"WEIR_ADVERTISE" help:"how peers reach this node, host:port; its name among them (default: found out)"`

	Peers         string       `env:"WEIR_PEERS" help:"all nodes of the cluster, host:port,host:port,... (default: this node alone)"`
	PeersSRV      dnsName      `env:"WEIR_PEERS_SRV" help:"or the DNS name whose SRV records list them"`
	DNSServer     dnsServer    `env:"WEIR_DNS_SERVER" help:"whom to ask for it, host or host:port (default: the system's servers)"`
	PeersRefresh  interval     `env:"WEIR_PEERS_REFRESH" envDefault:"10s" help:"how often to ask"`
	PeerSecret    secrets      `env:"WEIR_PEER_SECRET" help:"what nodes know each other by; two, comma-separated, while it is replaced"`
	InsecurePeers bool         `env:"WEIR_INSECURE_PEERS" envDefault:"false" help:"serve without a secret or certificates, though peers are on a network"`
	PeerTimeout   positiveSpan `env:"WEIR_PEER_TIMEOUT" envDefault:"500ms" help:"how long a check may wait for another node"`
	FailurePolicy policy       `env:"WEIR_FAILURE_POLICY" envDefault:"local" help:"while the owner of a limit is away: local (count here), open or closed"`
	BatchWindow   positiveSpan `env:"WEIR_BATCH_WINDOW" envDefault:"500us" help:"how long checks for one peer gather at most"`
	BatchLimit    batchLimit   `env:"WEIR_BATCH_LIMIT" envDefault:"1000" help:"how many do, 1 to 1000"`

	GlobalInterval syncInterval `env:"WEIR_GLOBAL_INTERVAL" envDefault:"100ms" help:"how often nodes tell each other of GLOBAL limits"`
	GlobalSlack    fraction     `env:"WEIR_GLOBAL_SLACK" envDefault:"0.01" help:"the part of a GLOBAL limit that may pass beyond it, 0 to 1"`

	CacheSize       count `env:"WEIR_CACHE_SIZE" envDefault:"1000000" help:"limits to remember at most"`
	MaxConns        count `env:"WEIR_MAX_CONNS" envDefault:"10000" help:"client connections at most"`
	Snapshot        file  `env:"WEIR_SNAPSHOT" help:"file to keep counts in over a restart, those that no other node takes over (default: none)"`
	DrainDelay      span  `env:"WEIR_DRAIN_DELAY" envDefault:"0s" help:"on SIGTERM, time to serve on while /readyz answers 503"`
	ShutdownTimeout span  `env:"WEIR_SHUTDOWN_TIMEOUT" envDefault:"8s" help:"after that, time to hand over limits and finish requests"`

	TLSCert string `env:"WEIR_TLS_CERT" help:"file with this node's certificate; with it, everything is TLS"`
	TLSKey  string `env:"WEIR_TLS_KEY" help:"file with its key"`
	TLSCA   string `env:"WEIR_TLS_CA" help:"file with the authority that signs certificates; with it, clients need one"`

	LogLevel  logLevel  `env:"WEIR_LOG_LEVEL" envDefault:"info" help:"debug, info, warn or error"`
	LogFormat logFormat `env:"WEIR_LOG_FORMAT" envDefault:"json" help:"json, or console for people"`
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments. It gives the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("weir", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {}
	showVersion := flags.Bool("version", false, "")
	askHealth := flags.Bool("health", false, "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage(stdout)
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "weir -h shows what there is")
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "weir: unexpected argument %q; weir -h shows what there is\n", flags.Arg(0))
		return 2
	case *showVersion:
		fmt.Fprintf(stdout, "weir %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return 0
	}
	c, err := readConfig()
	if err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return 2
	}
	if *askHealth {
		err = health(c)
	} else {
		err = serve(c, newLogger(c, stderr))
	}
	if err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return 1
	}
	return 0
}

func usage(w io.Writer) {
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

// serve runs a node until a signal ends it.
func serve(c config, log zerolog.Logger) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	warnUnknown(log)

	ln, err := net.Listen("tcp", string(c.Listen))
	if err != nil {
		return fmt.Errorf("WEIR_LISTEN=%q: %w", c.Listen, err)
	}
	defer ln.Close()
	ctx, stopLoops := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stopLoops()

	server.LimitMemory(int(c.CacheSize), log)
	files, err := c.loadTLS()
	if err != nil {
		return err
	}
	if files != nil {
		loops.Go(func() { files.Run(ctx, log) })
	}
	cluster, owner, err := c.join(ctx, ln, files, log, &loops)
	if err != nil {
		return err
	}
	if cluster != nil {
		defer cluster.Close()
	}
	limiter := limits.New(int(c.CacheSize), time.Now)
	c.Snapshot.load(limiter, log)
	loops.Go(func() { limiter.Run(ctx) })
	var syncer *global.Syncer
	taken := func() uint64 { return 0 }
	if cluster != nil {
		syncer = global.New(global.Options{
			Limiter: limiter, Away: limits.New(int(c.CacheSize), time.Now), Cluster: cluster, Log: log, Size: max(1, int(c.CacheSize)/globalPart),
			Interval: time.Duration(c.GlobalInterval), Slack: float64(c.GlobalSlack),
		})
		loops.Go(func() { syncer.Run(ctx) })
		taken = syncer.Taken
	}
	hurry := make(chan struct{})
	loops.Go(func() { server.KeepMemory(ctx, hurry, taken) })
	srv := server.New(server.Options{
		Global: syncer, Limiter: limiter, Owner: owner, Log: log, Version: version, MaxConns: int(c.MaxConns), TLS: files,
		Peers: cluster, PeerTimeout: time.Duration(c.PeerTimeout), PeerSecrets: c.PeerSecret, Policy: server.Policy(c.FailurePolicy),
	})

	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	log.Info().Str("listen", ln.Addr().String()).Str("owner", owner).Str("version", version).
		Int("cache_size", int(c.CacheSize)).Int("max_conns", int(c.MaxConns)).Str("failure_policy", string(c.FailurePolicy)).
		Stringer("drain_delay", c.DrainDelay).Stringer("shutdown_timeout", c.ShutdownTimeout).Bool("tls", files != nil).Msg("serving")

	select {
	case err := <-failed:
		return err
	case sig := <-signals:
		log.Info().Stringer("signal", sig).Msg("stopping")
		srv.Drain()
		close(hurry)
		if cluster != nil && cluster.Leave() {
			loops.Go(func() { cluster.TellLeaving(ctx) })
		}
		if sig == syscall.SIGTERM {
			wait(time.Duration(c.DrainDelay), signals) // meanwhile limits move
		}
	}
	ending, cancel := context.WithTimeout(context.Background(), time.Duration(c.ShutdownTimeout))
	defer cancel()
	handOver(ending, syncer, log)
	if err := srv.Shutdown(ending); err != nil {
		log.Warn().Err(err).Msg("requests were cut off")
	}
	handOver(ending, syncer, log) // what was counted since
	stopLoops()
	loops.Wait()
	if syncer != nil {
		syncer.KeepAll()
	}
	c.Snapshot.save(limiter, log)
	log.Info().Msg("stopped")
	return nil
}

// handOverPatience is how long a node that stops tries to hand over while nobody takes anything: somebody may only be busy.
const handOverPatience = 2 * time.Second

// handOver tells the owners what this node has counted for them, and gives them the limits that they take over. It tries
// again as long as there is time and somebody takes something.
func handOver(ctx context.Context, syncer *global.Syncer, log zerolog.Logger) {
	if syncer == nil {
		return
	}
	left, since := math.MaxInt, time.Now()
	for {
		err, pending := syncer.Sync(ctx), syncer.Pending()
		if err == nil || pending == 0 {
			return
		}
		if pending < left {
			left, since = pending, time.Now()
		}
		if ctx.Err() != nil || time.Since(since) > handOverPatience {
			log.Warn().Err(err).Int("limits", pending).Msg("not all that this node has counted could be handed over")
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A file is the path of a snapshot, "" for none. Nothing that happens to it keeps a node from running.
type file string

// UnmarshalText checks that the file could be written.
func (f *file) UnmarshalText(text []byte) error {
	*f = file(text)
	switch info, err := os.Stat(filepath.Dir(string(text))); {
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("must be in a directory")
	}
	if info, err := os.Stat(string(text)); err == nil && !info.Mode().IsRegular() {
		return errors.New("must be a file")
	}
	return nil
}

// load reads the snapshot, and puts it aside so that nothing in it can count twice.
func (f file) load(limiter *limits.Limiter, log zerolog.Logger) {
	if f == "" {
		return
	}
	in, err := os.Open(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	states := 0
	if err == nil {
		states, err = limiter.Load(in)
		in.Close()
	}
	aside := string(f) + ".loaded"
	if err != nil {
		aside = string(f) + ".damaged"
		log.Error().Err(err).Str("file", string(f)).Str("kept_as", aside).Msg("the snapshot can't be used: limits begin anew")
	} else {
		log.Info().Str("file", string(f)).Int("limits", states).Msg("snapshot loaded")
	}
	if err := os.Rename(string(f), aside); err != nil {
		log.Error().Err(err).Str("file", string(f)).Msg("the snapshot can't be put aside: after a crash it would be read again")
	}
}

// save writes the snapshot: all of it, or nothing.
func (f file) save(limiter *limits.Limiter, log zerolog.Logger) {
	if f == "" || limiter.Stats().Entries == 0 {
		return
	}
	states, err := f.write(limiter)
	if err != nil {
		log.Error().Err(err).Str("file", string(f)).Msg("the snapshot can't be written")
		return
	}
	log.Info().Str("file", string(f)).Int("limits", states).Msg("snapshot written")
}

func (f file) write(limiter *limits.Limiter) (states int, err error) {
	out, err := os.CreateTemp(filepath.Dir(string(f)), filepath.Base(string(f))+".*.tmp")
	if err != nil {
		return 0, err
	}
	defer os.Remove(out.Name()) // which fails once it has its own name
	states, err = limiter.Save(out)
	err = errors.Join(err, out.Sync(), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), string(f))
	}
	if dir, failed := os.Open(filepath.Dir(string(f))); failed == nil {
		err = errors.Join(err, dir.Sync(), dir.Close()) // so that the name is there, too, after a loss of power
	}
	return states, err
}

// globalPart is the part of the memory for limits that may go to copies and debts of other nodes' limits, which are larger.
const globalPart = 10

// join makes the cluster that the environment tells of, and gives this node's name. Without one the cluster is nil. The
// loop that follows DNS, if that tells, joins the others.
func (c config) join(ctx context.Context, ln net.Listener, files *server.TLS, log zerolog.Logger, loops *sync.WaitGroup) (*peers.Set, string, error) {
	owner := c.owner(ln.Addr())
	if c.Peers == "" && c.PeersSRV == "" {
		return nil, owner, nil
	}
	if c.Peers != "" && c.PeersSRV != "" {
		return nil, "", fmt.Errorf("WEIR_PEERS_SRV=%q: WEIR_PEERS is set too; set one of them", c.PeersSRV)
	}
	members, err := discovery.ParseList(c.Peers)
	if err == nil && c.Peers != "" && len(members) == 0 {
		err = errors.New("lists no node")
	}
	if err != nil {
		return nil, "", fmt.Errorf("WEIR_PEERS=%q: %w", c.Peers, err)
	}
	if !c.guarded() && (c.PeersSRV != "" || slices.ContainsFunc(members, peers.Member.Distant)) {
		return nil, "", errors.New("WEIR_PEER_SECRET is not set, so anybody could change the counts of this cluster: set it to the same " +
			"secret on all nodes (or WEIR_TLS_CA, or WEIR_INSECURE_PEERS=true if the network is safe)")
	}
	options := peers.Options{
		Timeout: time.Duration(c.PeerTimeout), BatchWindow: time.Duration(c.BatchWindow), BatchLimit: int(c.BatchLimit), Log: log,
	}
	if len(c.PeerSecret) > 0 {
		options.Secret = c.PeerSecret[0]
	}
	if files != nil {
		options.TLS = files.Client
	}
	cluster := peers.New(options)
	listen, err := netip.ParseAddrPort(ln.Addr().String())
	if err != nil {
		return nil, "", fmt.Errorf("WEIR_LISTEN=%q: %w", c.Listen, err)
	}
	if c.PeersSRV != "" {
		srv := discovery.NewSRV(string(c.PeersSRV), string(c.DNSServer))
		loops.Go(func() { cluster.Follow(ctx, srv, time.Duration(c.PeersRefresh), string(c.Advertise), listen) })
		return cluster, owner, nil
	}
	if err := cluster.Static(ctx, members, string(c.Advertise), listen); err != nil {
		return nil, "", fmt.Errorf("WEIR_PEERS=%q: %w", c.Peers, err)
	}
	return cluster, cluster.View().Self(), nil
}

// guarded says whether something keeps others from calling this node as a peer.
func (c config) guarded() bool { return len(c.PeerSecret) > 0 || c.TLSCA != "" || c.InsecurePeers }

// loadTLS reads the files that the environment names; nil if it names none.
func (c config) loadTLS() (*server.TLS, error) {
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

// wait waits for d, or the next signal.
func wait(d time.Duration, signals <-chan os.Signal) {
	select {
	case <-time.After(d):
	case <-signals:
	}
}

// health asks the weir that listens on this machine whether it lives.
func health(c config) error {
	host, port, err := net.SplitHostPort(string(c.Listen))
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	// Without a proxy, which is for calls that leave this machine. The certificate is for the name that others use; whoever
	// listens here is asked whether it lives, no more.
	scheme, client := "http://", http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	if c.TLSCert != "" {
		scheme = "https://"
	}
	resp, err := client.Get(scheme + net.JoinHostPort(host, port) + "/healthz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/healthz answers %s", resp.Status)
	}
	return nil
}

// owner is the name of this node: what it is told, else an address at which others could reach it.
func (c config) owner(listening net.Addr) string {
	if c.Advertise != "" {
		return string(c.Advertise)
	}
	host, port, err := net.SplitHostPort(listening.String())
	if err != nil {
		return listening.String()
	}
	if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = outwardIP()
	}
	return net.JoinHostPort(host, port)
}

// outwardIP gives this machine's first address that others could reach, IPv4 before IPv6, or the loopback address.
func outwardIP() string {
	addrs, _ := net.InterfaceAddrs() // none is as good as an error
	var found []net.IP
	for _, addr := range addrs {
		if n, ok := addr.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			found = append(found, n.IP)
		}
	}
	slices.SortStableFunc(found, func(a, b net.IP) int { return cmp.Compare(len(a.To4()), len(b.To4())) * -1 })
	if len(found) == 0 {
		return "127.0.0.1"
	}
	return found[0].String()
}

// readConfig reads the environment. Its error is one line that names the variable and its value.
func readConfig() (config, error) {
	c, err := env.ParseAs[config]()
	var failed env.AggregateError
	if errors.As(err, &failed) {
		err = failed.Errors[0]
	}
	var parse env.ParseError
	if errors.As(err, &parse) {
		for _, v := range variables() {
			if v.field == parse.Name {
				value := strconv.Quote(os.Getenv(v.name))
				if parse.Type == reflect.TypeFor[secrets]() {
					value = "..." // errors end up in logs
				}
				return c, fmt.Errorf("%s=%s: %w", v.name, value, parse.Err)
			}
		}
	}
	return c, err
}

// A variable is one of the environment's, as config declares it.
type variable struct{ field, name, value, help string }

// variables lists what config declares, in its order.
func variables() []variable {
	t := reflect.TypeFor[config]()
	list := make([]variable, t.NumField())
	for i := range list {
		f := t.Field(i)
		list[i] = variable{f.Name, f.Tag.Get("env"), f.Tag.Get("envDefault"), f.Tag.Get("help")}
	}
	return list
}

// warnUnknown warns of variables that look like ours and aren't: most likely they are misspelt.
func warnUnknown(log zerolog.Logger) {
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		known := slices.ContainsFunc(variables(), func(v variable) bool { return v.name == name })
		if strings.HasPrefix(name, "WEIR_") && !known {
			log.Warn().Str("variable", name).Msg("unknown variable, ignored; weir -h lists the known ones")
		}
	}
}

func newLogger(c config, w io.Writer) zerolog.Logger {
	if c.LogFormat == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339, NoColor: !isTerminal(w)}
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	return zerolog.New(w).Level(zerolog.Level(c.LogLevel)).With().Timestamp().Logger()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// A dnsName is a name to look up.
type dnsName string

// UnmarshalText checks the form, not whether the name exists.
func (n *dnsName) UnmarshalText(text []byte) error {
	if !isName(strings.TrimSuffix(string(text), ".")) {
		return errors.New("must be a DNS name, such as _weir._tcp.example.org")
	}
	*n = dnsName(text)
	return nil
}

func isName(s string) bool {
	odd := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.", r))
	}
	return s != "" && len(s) < 254 && !strings.ContainsFunc(s, odd) && !strings.Contains(s, "..") && s[0] != '.'
}

// A dnsServer is a host, or host:port.
type dnsServer string

// UnmarshalText checks the form, not whether anybody answers there.
func (d *dnsServer) UnmarshalText(text []byte) error {
	host, port, err := net.SplitHostPort(string(text))
	if err != nil {
		host, port = strings.Trim(string(text), "[]"), "53"
	}
	_, err = strconv.ParseUint(port, 10, 16)
	if err != nil || net.ParseIP(host) == nil && !isName(host) {
		return errors.New("must be a host or host:port, such as 10.0.0.2 or 127.0.0.1:8600")
	}
	*d = dnsServer(text)
	return nil
}

// An address is a host:port. The host may be empty, the port may be 0.
type address string

// A reachable is an address at which others can reach this node.
type reachable string

// UnmarshalText checks the form, not whether the host exists.
func (a *reachable) UnmarshalText(text []byte) error {
	var plain address
	if err := plain.UnmarshalText(text); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(string(text))
	if n, _ := strconv.Atoi(port); host == "" || net.ParseIP(host).IsUnspecified() || n == 0 {
		return errors.New("must be an address at which others can reach this node, such as 10.0.0.3:8080")
	}
	*a = reachable(text)
	return nil
}

// UnmarshalText checks the form, not whether the host exists.
func (a *address) UnmarshalText(text []byte) error {
	_, port, err := net.SplitHostPort(string(text))
	if err != nil {
		return errors.New("must be host:port, such as 10.0.0.3:8080 or :8080")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return errors.New("the port must be a number from 0 to 65535")
	}
	*a = address(text)
	return nil
}

// A count is a whole number from 1 to 2,147,483,647.
type count int

// UnmarshalText reads decimal digits.
func (n *count) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || v < 1 {
		return errors.New("must be a whole number from 1 to 2147483647")
	}
	*n = count(v)
	return nil
}

// readSpan reads what time.ParseDuration does, if it is not less than the least.
func readSpan(text []byte, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(string(text))
	if err == nil && d >= least {
		return d, nil
	}
	message := "must be a length of time with its unit, such as 500ms or 10s"
	if least > 1 {
		message += ", and at least " + least.String()
	}
	return 0, errors.New(message)
}

// A span is a length of time, possibly none.
type span time.Duration

// UnmarshalText reads what time.ParseDuration does.
func (s *span) UnmarshalText(text []byte) error {
	d, err := readSpan(text, 0)
	*s = span(d)
	return err
}

func (s span) String() string { return time.Duration(s).String() }

// A positiveSpan is a length of time.
type positiveSpan time.Duration

// UnmarshalText reads what time.ParseDuration does.
func (s *positiveSpan) UnmarshalText(text []byte) error {
	d, err := readSpan(text, 1)
	*s = positiveSpan(d)
	return err
}

// An interval is a length of time in which DNS is asked once: not less than 100 ms.
type interval time.Duration

// UnmarshalText reads what time.ParseDuration does.
func (s *interval) UnmarshalText(text []byte) error {
	d, err := readSpan(text, 100*time.Millisecond)
	*s = interval(d)
	return err
}

// A syncInterval is a length of time in which nodes tell each other of counts once: not less than 10 ms.
type syncInterval time.Duration

// UnmarshalText reads what time.ParseDuration does.
func (s *syncInterval) UnmarshalText(text []byte) error {
	d, err := readSpan(text, 10*time.Millisecond)
	*s = syncInterval(d)
	return err
}

// A batchLimit is a number of items in a batch.
type batchLimit int

// UnmarshalText reads decimal digits.
func (n *batchLimit) UnmarshalText(text []byte) error {
	v, err := strconv.Atoi(string(text))
	if err != nil || v < 1 || v > wire.MaxItems {
		return errors.New("must be a whole number from 1 to 1000")
	}
	*n = batchLimit(v)
	return nil
}

// A fraction is a number from 0 to 1.
type fraction float64

// UnmarshalText reads a decimal number.
func (f *fraction) UnmarshalText(text []byte) error {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(v >= 0 && v <= 1) {
		return errors.New("must be a number from 0 to 1, such as 0.01")
	}
	*f = fraction(v)
	return nil
}

// secrets are what peers may know each other by: the first is sent, all are accepted.
type secrets []string

// UnmarshalText reads one or two, separated by a comma.
func (s *secrets) UnmarshalText(text []byte) error {
	list := strings.Split(string(text), ",")
	for i := range list {
		if list[i] = strings.TrimSpace(list[i]); list[i] == "" || strings.ContainsFunc(list[i], notHeader) || len(list) > 2 {
			return errors.New("must be one secret, or two separated by a comma, of visible ASCII")
		}
	}
	*s = list
	return nil
}

// notHeader says what may not stand in the header that carries a secret.
func notHeader(r rune) bool { return r < '!' || r > '~' }

// A policy is one of the three that -h names.
type policy string

// UnmarshalText reads the name of a policy.
func (p *policy) UnmarshalText(text []byte) error {
	*p = policy(text)
	switch server.Policy(text) {
	case server.PolicyLocal, server.PolicyOpen, server.PolicyClosed:
		return nil
	}
	return errors.New("must be local, open or closed")
}

// A logLevel is one of the four that -h names.
type logLevel zerolog.Level

// UnmarshalText reads the name of a level.
func (l *logLevel) UnmarshalText(text []byte) error {
	level, err := zerolog.ParseLevel(string(text))
	if err != nil || level.String() != strings.ToLower(string(text)) || level < zerolog.DebugLevel || level > zerolog.ErrorLevel {
		return errors.New("must be debug, info, warn or error")
	}
	*l = logLevel(level)
	return nil
}

// A logFormat is json or console.
type logFormat string

// UnmarshalText reads the name of a format.
func (f *logFormat) UnmarshalText(text []byte) error {
	if *f = logFormat(text); *f != "json" && *f != "console" {
		return errors.New("must be json or console")
	}
	return nil
}
