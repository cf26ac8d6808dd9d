//go:build linux

// Command suite measures weir on this machine, beside a floor: the least that a service on this stack can cost. It
// starts what it measures, drives it with the generator in tests/load, prints tables in Markdown and draws plots. From
// the repository's root:
//
//	go run ./tests/load/suite
//
// A machine wanders, so all runs are made one after the other, -repeat times, and each figure is the median of its
// repetitions: what is compared has been measured side by side. It runs on Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

type options struct {
	seconds int // measured in each run
	repeat  int
	only    *regexp.Regexp
	quick   bool
	dir     string // where results go; empty: nowhere
	port    int    // of the first server
}

func main() {
	var o options
	flag.IntVar(&o.seconds, "seconds", 4, "measured time of each run, after 1 s of warm-up; 5 times as much for live keys")
	flag.IntVar(&o.repeat, "repeat", 3, "how often to do all runs; figures are medians")
	only := flag.String("only", "",
		"make only the runs whose \"table: row\" matches this regular expression; -list shows them")
	flag.BoolVar(&o.quick, "quick", false, "1 s, once, and not more than 1,000,000 live keys: to see whether it works")
	flag.StringVar(&o.dir, "o", "", "write plots and, into performance.md, tables to this directory: -o docs. "+
		"Only those of which all was measured")
	flag.IntVar(&o.port, "port", 18100, "serve at this port of 127.0.0.1 and the next ones")
	list := flag.Bool("list", false, "list the runs and end")
	flag.Parse()
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		fatal(err)
	}
	if o.quick {
		o.seconds, o.repeat = 1, 1
	}
	chosen := choose(scenarios(o.quick), o.only)
	if *list {
		for _, r := range chosen {
			fmt.Println(r.id())
		}
		return
	}
	if err := measureAll(o, chosen); err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "suite:", err)
	os.Exit(1)
}

// measureAll makes all runs and reports on them; after an error, on those that were made. No server outlives it,
// whatever happens.
func measureAll(o options, runs []run) error {
	// The kernel ends the servers together with the thread that started them (see start): this one must last.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	dir, err := os.MkdirTemp("", "weir-suite-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := bench{options: o, ctx: ctx, weir: filepath.Join(dir, "weir"), load: filepath.Join(dir, "load")}
	if err := b.build(); err != nil {
		return err
	}
	begun := time.Now()
	rs := results{}
	for repetition := range o.repeat {
		for i, r := range runs {
			f, err := b.measure(r)
			if err != nil {
				return errors.Join(report("", rs), ctx.Err(), fmt.Errorf("%s: %w", r.id(), err))
			}
			rs[r.id()] = append(rs[r.id()], f)
			fmt.Fprintf(os.Stderr, "%d/%d %d/%d %s: %s µs/check, %s/s; others used %.0f %% of the machine%s\n",
				repetition+1, o.repeat, i+1, len(runs), r.id(), number(f.CPU), number(f.Rate), 100*f.others(), f.warning())
		}
	}
	fmt.Fprintf(os.Stderr, "%d runs took %v\n", o.repeat*len(runs), time.Since(begun).Round(time.Second))
	return report(o.dir, rs)
}

// build makes the two programs, of the sources in this directory.
func (b *bench) build() error {
	for _, c := range [][]string{{b.weir, "."}, {b.load, "./tests/load"}} {
		cmd := exec.CommandContext(b.ctx, "go", "build", "-o", c[0], c[1])
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("go build %s: %w", c[1], err)
		}
	}
	return nil
}
