package node

import (
	"testing"
	"testing/fstest"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 400, 1: 400, 1 << 20: 400, 64 << 20: 400, 128 << 20: 200, 256 << 20: 100, 1 << 40: 100,
	} {
		if got := gcPercent(live, spareMemory); got != want {
			t.Errorf("%d bytes in use: %d, want %d", live, got, want)
		}
	}
}

// TestGCHeadroom: while limits come from other nodes there is more, and only then.
func TestGCHeadroom(t *testing.T) {
	var headroom gcHeadroom
	for i, second := range []struct{ taken, want uint64 }{
		{0, spareMemory}, {10, spareMemory}, {5000, moreMemory}, {50_000, moreMemory}, {50_100, spareMemory},
		{50_100, spareMemory},
	} {
		if got := headroom.spare(second.taken); got != second.want {
			t.Errorf("second %d: %d MB, want %d", i, got>>20, second.want>>20)
		}
	}
}

func TestContainerMemory(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       int64
	}{
		{"memory.max", "67108864\n", 64 << 20},
		{"memory.max", "max\n", 0},
		{"memory.max", "", 0},
		{"memory/memory.limit_in_bytes", "134217728\n", 128 << 20},
		{"memory/memory.limit_in_bytes", "9223372036854771712\n", 0},
		{"something", "1\n", 0},
	} {
		cgroup := fstest.MapFS{test.name: {Data: []byte(test.text)}}
		if got := containerMemory(cgroup); got != test.want {
			t.Errorf("%s says %q: %d, want %d", test.name, test.text, got, test.want)
		}
	}
}
