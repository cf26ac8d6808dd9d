// Command weir is a rate limiter that services ask over HTTP. Environment variables configure it; weir -h lists them.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
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

	"weir/limits"
	"weir/server"
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version = "dev"

// config is the environment. The tags are the whole documentation of -h.
type config struct {
	Listen          address   `env:"WEIR_LISTEN" envDefault:":8080" help:"where to serve, host:port"`
	Advertise       address   `env:"WEIR_ADVERTISE" help:"this node's name and address for others, host:port (default: found out)"`
	CacheSize       count     `env:"WEIR_CACHE_SIZE" envDefault:"1000000" help:"limits to remember at most"`
	MaxConns        count     `env:"WEIR_MAX_CONNS" envDefault:"10000" help:"client connections at most"`
	DrainDelay      span      `env:"WEIR_DRAIN_DELAY" envDefault:"0s" help:"on SIGTERM, time to serve on while /readyz answers 503"`
	ShutdownTimeout span      `env:"WEIR_SHUTDOWN_TIMEOUT" envDefault:"8s" help:"after that, time for requests to finish"`
	LogLevel        logLevel  `env:"WEIR_LOG_LEVEL" envDefault:"info" help:"debug, info, warn or error"`
	LogFormat       logFormat `env:"WEIR_LOG_FORMAT" envDefault:"json" help:"json, or console for people"`
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments. It gives the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("weir", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { usage(flags.Output()) }
	showVersion := flags.Bool("version", false, "")
	askHealth := flags.Bool("health", false, "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
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
		return fmt.Errorf("WEIR_LISTEN: %w", err)
	}
	owner := c.owner(ln.Addr())
	limiter := limits.New(int(c.CacheSize), time.Now)
	srv := server.New(server.Options{Limiter: limiter, Owner: owner, Log: log, Version: version, MaxConns: int(c.MaxConns)})

	ctx, stopLoops := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { limiter.Run(ctx) })
	defer loops.Wait()
	defer stopLoops()

	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	log.Info().Str("listen", ln.Addr().String()).Str("owner", owner).Str("version", version).
		Int("cache_size", int(c.CacheSize)).Int("max_conns", int(c.MaxConns)).Stringer("drain_delay", c.DrainDelay).
		Stringer("shutdown_timeout", c.ShutdownTimeout).Msg("serving")

	select {
	case err := <-failed:
		return err
	case sig := <-signals:
		log.Info().Stringer("signal", sig).Msg("stopping")
		srv.Drain()
		if sig == syscall.SIGTERM {
			wait(time.Duration(c.DrainDelay), signals)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.ShutdownTimeout))
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		log.Warn().Err(err).Msg("requests were cut off")
	}
	log.Info().Msg("stopped")
	return nil
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
	client := http.Client{Timeout: 2 * time.Second}
	resp, err := client.Get("http://" + net.JoinHostPort(host, port) + "/healthz")
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
				return c, fmt.Errorf("%s=%q: %w", v.name, os.Getenv(v.name), parse.Err)
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
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339}
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	return zerolog.New(w).Level(zerolog.Level(c.LogLevel)).With().Timestamp().Logger()
}

// An address is a host:port. The host may be empty, the port may be 0.
type address string

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

// A count is a whole number from 1.
type count int

// UnmarshalText reads decimal digits.
func (n *count) UnmarshalText(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 48)
	if err != nil || v < 1 {
		return errors.New("must be a whole number, at least 1")
	}
	*n = count(v)
	return nil
}

// A span is a length of time, possibly none.
type span time.Duration

// UnmarshalText reads what time.ParseDuration does.
func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d < 0 {
		return errors.New("must be a length of time with its unit, such as 500ms or 10s")
	}
	*s = span(d)
	return nil
}

func (s span) String() string { return time.Duration(s).String() }

// A logLevel is one of the four that -h names.
type logLevel zerolog.Level

// UnmarshalText reads the name of a level.
func (l *logLevel) UnmarshalText(text []byte) error {
	level, err := zerolog.ParseLevel(string(text))
	if err != nil || level < zerolog.DebugLevel || level > zerolog.ErrorLevel {
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
