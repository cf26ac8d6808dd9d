package ring

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func nodes(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("10.0.0.%d:8080", i+1)
	}
	return names
}

// TestGolden pins owners and fingerprints: a change of these moves nearly all keys of all clusters while they are
// upgraded, and must not come unseen.
func TestGolden(t *testing.T) {
	r := New(nodes(5))
	for key, want := range golden {
		if got := r.Owner(Partition([]byte(key))); got != want {
			t.Errorf("owner of %q is %s, want %s", key, got, want)
		}
	}
	if got, want := r.Fingerprint(), goldenFingerprint; got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
}

func TestOrderBlanksAndDuplicatesDontMatter(t *testing.T) {
	names := nodes(7)
	want := New(names)
	for range 20 {
		odd := append(slices.Clone(names), "", names[3], "")
		rand.Shuffle(len(odd), func(i, j int) { odd[i], odd[j] = odd[j], odd[i] })
		got := New(odd)
		if got.owners != want.owners || got.Fingerprint() != want.Fingerprint() || !slices.Equal(got.Nodes(), want.Nodes()) {
			t.Fatalf("%v makes another ring", odd)
		}
	}
	if got := New(nodes(6)); got.Fingerprint() == want.Fingerprint() {
		t.Error("rings of 6 and 7 nodes have one fingerprint")
	}
}

func TestOwnersWithoutANode(t *testing.T) {
	r := New(nodes(5))
	gone := r.Nodes()[2]
	less := r.Without(gone)
	moved, stray := 0, 0
	for p := range Partitions {
		switch before, after := r.Owner(p), less.Owner(p); {
		case after == gone:
			t.Fatalf("partition %d still belongs to %s", p, gone)
		case before == gone:
			moved++
		case before != after:
			stray++
		}
	}
	if moved == 0 || stray > Partitions/100 {
		t.Errorf("%d partitions moved from the node that is gone, %d from others", moved, stray)
	}
	if got, want := less.Fingerprint(), New(less.Nodes()).Fingerprint(); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
}

// TestSpread counts the owners of keys that look as keys do: with running numbers, on hosts with nearly the same name.
func TestSpread(t *testing.T) {
	kinds := map[string]func(int) string{
		"numbers":  func(i int) string { return fmt.Sprintf("\x08requestsaccount:%d", 10_000+i) },
		"padded":   func(i int) string { return fmt.Sprintf("\x04mailtenant-7f3a9c04:user-session-id%09d", i) },
		"hex":      func(i int) string { return fmt.Sprintf("\x01k%x", i) },
		"last":     func(i int) string { return fmt.Sprintf("\x01a%d", i) },
		"backward": func(i int) string { return fmt.Sprintf("\x01a%d=id", i) },
	}
	lists := [][]string{nodes(2), nodes(3), nodes(10), {"host-1:80", "host-2:80", "host-3:80"},
		{"127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003"}}
	const keys = 10_000
	for _, list := range lists {
		r := New(list)
		for kind, key := range kinds {
			counts := map[string]int{}
			for i := range keys {
				counts[r.Owner(Partition([]byte(key(i))))]++
			}
			for node, n := range counts {
				if share := float64(n) / keys * float64(len(list)); share < .5 || share > 1.4 {
					t.Errorf("%s of %d owns %.2f of its fair share of %s", node, len(list), share, kind)
				}
			}
			if len(counts) != len(list) {
				t.Errorf("%d of %d nodes own nothing of %s", len(list)-len(counts), len(list), kind)
			}
		}
	}
}

// TestMovement measures, for clusters of 1 to 100 nodes, the shares, what one more node takes, and what moves between
// nodes that stay. With -v it prints the table from which the shape of the ring was chosen.
func TestMovement(t *testing.T) {
	t.Logf("%5s %9s %9s %12s %7s %7s", "nodes", "least", "most", "to new node", "ideal", "stray")
	for _, n := range []int{1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 99} {
		before, after := New(nodes(n)), New(nodes(n+1))
		shares := before.Shares()
		taken, stray := 0, 0
		for p := range Partitions {
			if is, was := after.Owner(p), before.Owner(p); is != was {
				if is == fmt.Sprintf("10.0.0.%d:8080", n+1) {
					taken++
				} else {
					stray++
				}
			}
		}
		least, most := slices.Min(shares)*float64(n), slices.Max(shares)*float64(n)
		t.Logf("%5d %9.2f %9.2f %10.1f %% %5.1f %% %5.2f %%", n, least, most,
			100*float64(taken)/Partitions, 100/float64(n+1), 100*float64(stray)/Partitions)
		if least < .4 || most > 1.3 {
			t.Errorf("%d nodes: shares from %.2f to %.2f of fair", n, least, most)
		}
		if stray > Partitions/100 {
			t.Errorf("%d nodes and one more: %d of %d partitions moved between nodes that stay", n, stray, Partitions)
		}
	}
}

func TestNoNodes(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a ring without nodes was made")
		}
	}()
	New([]string{""})
}

func FuzzPartition(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte("\x04mailaccount=123"))
	f.Fuzz(func(t *testing.T, key []byte) {
		p := Partition(key)
		if p < 0 || p >= Partitions || p != Partition(slices.Clone(key)) {
			t.Fatalf("partition %d", p)
		}
	})
}

func BenchmarkPartition(b *testing.B) {
	key := []byte("\x04mailtenant-7f3a9c04:user-session-id000000001")
	for b.Loop() {
		Partition(key)
	}
}

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				New(nodes(n))
			}
		})
	}
}

var golden = map[string]string{
	"":                          "10.0.0.5:8080",
	"k":                         "10.0.0.1:8080",
	"\x04mailaccount=123":       "10.0.0.3:8080",
	"\x04mailaccount=124":       "10.0.0.1:8080",
	"\x08requestsaccount:10000": "10.0.0.4:8080",
	"\x01ключ":                  "10.0.0.2:8080",
	"\x10requests_per_sectenant-7f3a9c04:user-session-id000000001": "10.0.0.4:8080",
}

const goldenFingerprint = "4711695e30736817"
