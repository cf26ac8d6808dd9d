package bucket

import (
	"strings"
	"testing"
)

func TestSplitID(t *testing.T) {
	for _, pair := range [][2]string{
		{"n", "k"}, {"name", "key"}, {strings.Repeat("n", 255), "k"}, {"é", "\x01"}, {"a", strings.Repeat("b", 1024)},
	} {
		r := Request{Name: pair[0], UniqueKey: pair[1]}
		id := string(r.AppendID(nil))
		if name, key := SplitID(id); name != pair[0] || key != pair[1] || len(id) > MaxIDBytes {
			t.Errorf("%q: %q, %q", id, name, key)
		}
	}
}
