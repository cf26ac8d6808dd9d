package tests

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSnapshot restarts a single node again and again, which goes on where it was; a damaged file is put aside.
func TestSnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counts")
	n := start(t, freeAddrs(t, 1)[0], "WEIR_SNAPSHOT="+file)
	hit := func(remaining int64) {
		t.Helper()
		n.ready(t, 1)
		if r := n.node.check(t, item("k", "duration", 3_600_000))[0]; r.Status != "OK" || *r.Remaining != remaining {
			t.Errorf("want %d: %s", remaining, describe(r))
		}
	}
	restart := func(s os.Signal) {
		t.Helper()
		n.signal(t, s)
		n.wait(t)
		n = n.again(t)
	}
	hit(9)
	restart(syscall.SIGTERM)
	hit(8)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("what was read is still there: %v", err)
	}
	restart(syscall.SIGINT)
	hit(7)
	restart(syscall.SIGKILL) // nothing is written then, and what was read before is not read again
	hit(9)

	n.signal(t, syscall.SIGTERM)
	n.wait(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text[:len(text)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	n = n.again(t)
	hit(9)
	if damaged, err := os.ReadFile(file + ".damaged"); err != nil || len(damaged) != len(text)-3 {
		t.Errorf("%d bytes were put aside: %v", len(damaged), err)
	}
	if !strings.Contains(n.output.String(), "the snapshot can't be used") {
		t.Error("nobody says so")
	}
	left, err := filepath.Glob(file + "*")
	if err != nil || len(left) != 2 { // .damaged and .loaded
		t.Errorf("there are %v, %v", left, err)
	}
}
