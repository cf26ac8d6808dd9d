package limits

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestFind: each limit is found once, where it belongs, and who is whole again first comes last.
func TestFind(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := New(5000, func() time.Time { return now })
	want := map[string][]string{}
	for i := range 3000 {
		r := Request{Name: "n", UniqueKey: fmt.Sprint("key", i), Hits: 1, Limit: 10, Duration: int64(10_000 - i)}
		l.Check(r)
		if place := i % 3; place > 0 {
			want[fmt.Sprint(place)] = append(want[fmt.Sprint(place)], string(r.AppendID(nil)))
		}
	}
	got := l.Find(func(id []byte) (string, bool) {
		var i int
		fmt.Sscanf(string(id), "\x01nkey%d", &i)
		return fmt.Sprint(i % 3), i%3 > 0
	})
	if len(got) != 2 {
		t.Errorf("%d places", len(got))
	}
	for place, ids := range want {
		if !slices.Equal(got[place], ids) {
			t.Errorf("place %s: %d ids, want %d; or their order is wrong", place, len(got[place]), len(ids))
		}
	}
}
