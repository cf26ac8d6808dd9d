// Command weir is a rate limiter that services ask over HTTP. Environment variables configure it; weir -h lists them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	_ "time/tzdata" // the container has no zone files

	"github.com/rs/zerolog"

	"weir/server"
	"weir/server/config"
	"weir/server/node"
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version = "dev"

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments. It returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("weir", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {}
	showVersion := flags.Bool("version", false, "")
	askHealth := flags.Bool("health", false, "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		config.Usage(stdout)
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
	c, err := config.Read(os.Environ())
	if err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return 2
	}
	if *askHealth {
		err = server.AskHealth(c.Listen, c.TLSCert != "")
	} else {
		err = serve(c, c.Logger(stderr))
	}
	if err != nil {
		fmt.Fprintln(stderr, "weir:", err)
		return 1
	}
	return 0
}

// serve runs a node until a signal ends it.
func serve(c *config.Config, log zerolog.Logger) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	c.WarnUnknown(log)

	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return c.Wrong("WEIR_LISTEN", err)
	}
	defer ln.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	files, err := c.TLS()
	if err != nil {
		return err
	}
	if files != nil {
		go files.Run(ctx, log)
	}
	options, err := c.Node(netip.MustParseAddrPort(ln.Addr().String()), files, log)
	if err != nil {
		return err
	}
	n, err := node.New(options)
	if err != nil {
		return c.Wrong("WEIR_PEERS", err)
	}
	defer n.Close()
	go n.Run(ctx)

	srv := server.New(c.Server(n, files, log, version))
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	log.Info().Stringer("listen", ln.Addr()).Str("owner", n.Status().Self).Str("version", version).EmbedObject(c).
		Msg("serving")
	select {
	case err := <-failed:
		return err
	case sig := <-signals:
		log.Info().Stringer("signal", sig).Msg("stopping")
		delay := c.DrainDelay
		if sig == syscall.SIGINT {
			delay = 0
		}
		srv.Stop(delay, c.ShutdownTimeout, signals) // it has logged its error
		log.Info().Msg("stopped")
		return nil
	}
}
