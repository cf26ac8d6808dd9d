package tests

import (
	"os"
	"path/filepath"
	"slices"
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
		t.Error("the log doesn't say so")
	}
	left, err := filepath.Glob(file + "*")
	if err != nil || len(left) != 2 { // .damaged and .loaded
		t.Errorf("there are %v, %v", left, err)
	}
}

// TestSnapshotInACluster stops nodes with and without others that take over. What a node has taken over is not written;
// what none has, its node writes. So all counts are there once, whatever the order.
func TestSnapshotInACluster(t *testing.T) {
	dir := t.TempDir()
	file := func(p *process) string { return filepath.Join(dir, strings.ReplaceAll(p.name, ":", "-")) }
	all := startAll(t, 2)
	for i, p := range all { // the file has the name of the node
		p.signal(t, syscall.SIGTERM)
		p.wait(t)
		all[i] = start(t, p.name, append(p.variables, "WEIR_SNAPSHOT="+file(p))...)
	}
	stop := func(i int, s os.Signal) {
		t.Helper()
		all[i].signal(t, s)
		all[i].wait(t)
	}
	wantFile := func(i int, is bool) {
		t.Helper()
		if _, err := os.Stat(file(all[i])); (err == nil) != is {
			t.Errorf("node %d, is there a file: %v", i, err)
		}
	}
	agreed := func() {
		t.Helper()
		for _, p := range all {
			p.ready(t, 2)
		}
		agree(t, all...)
	}
	want := func(keys []string, remaining int64) {
		t.Helper()
		for _, p := range all {
			wantAll(t, keys, remaining, p.node)
		}
	}
	given := func() { // a node that leaves before the other one knows that it has been given its limits makes them count twice
		t.Helper()
		eventually(t, "node 1 has given node 0 its limits", func() bool {
			return metrics(t,
				all[1].node)["weir_moved_states_total"] == 10
		})
	}
	agreed()
	keys := [][]string{all[0].keysOf(t, all[0].node, 10), all[0].keysOf(t, all[1].node, 10)}
	for i := range keys {
		all[0].use(t, keys[i], 3, "duration", 3_600_000)
	}

	stop(0, syscall.SIGTERM) // the other takes over
	wantFile(0, false)
	all[0] = all[0].again(t)
	agreed()
	want(slices.Concat(keys...), 7)
	given()

	stop(0, syscall.SIGTERM)
	stop(1, syscall.SIGTERM) // as the last one
	wantFile(0, false)
	wantFile(1, true)
	all[0] = all[0].again(t)
	all[1] = all[1].again(t)
	agreed()
	want(slices.Concat(keys...), 7)
	given()
	wantFile(1, false)

	stop(1, syscall.SIGKILL)
	stop(0, syscall.SIGTERM) // there is no node to take over
	wantFile(0, true)
	all[0] = all[0].again(t)
	all[0].ready(t, 2)
	wantAll(t, keys[0], 7, all[0].node)
	all[1] = all[1].again(t)
	agreed()
	want(keys[0], 7)
	want(keys[1], 10) // only the other one knew
}
