package limits

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// TestFind: each limit is found in one part, where it belongs, and who is whole again soonest comes last.
func TestFind(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := New(5000, func() time.Time { return now })
	want := map[string]string{}
	for i := range 3000 {
		r := Request{Name: "n", UniqueKey: fmt.Sprint("key", i), Hits: 1, Limit: 10, Duration: int64(1000 << (i * 7919 % 20))}
		if l.Check(r); i%3 > 0 {
			want[string(r.AppendID(nil))] = fmt.Sprint(i % 3)
		}
	}
	where := func(id []byte) (string, bool) {
		var i int
		fmt.Sscanf(string(id), "\x01nkey%d", &i)
		return fmt.Sprint(i % 3), i%3 > 0
	}
	for _, parts := range []int{1, 2, 5, 100} {
		got := map[string]string{}
		for part := range parts {
			for place, all := range l.Find(part, parts, where) {
				if !slices.IsSortedFunc(all, func(a, b Found) int { return cmp.Compare(b.Rank, a.Rank) }) {
					t.Errorf("part %d of %d: not the highest rank first", part, parts)
				}
				for _, found := range all {
					got[found.ID] = place
					st := l.State([]byte(found.ID))
					if left := st.expiry() - now.UnixNano(); left >= 1<<found.Rank || left < 1<<found.Rank/2 {
						t.Errorf("%q is whole again in %v, not in %v", found.ID, time.Duration(left), time.Duration(1<<found.Rank))
					}
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%d are found in %d parts, want %d", len(got), parts, len(want))
		}
	}
}
