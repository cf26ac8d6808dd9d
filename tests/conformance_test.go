package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A conformanceCase is a sequence of checks on a fresh node, and how they must be answered.
type conformanceCase struct {
	ID    string
	Title string
	Start int64 `json:"start_unix_ms"`
	Steps []struct {
		At     int64 `json:"at_ms"`
		Check  json.RawMessage
		Expect struct {
			Status     string
			Limit      *int64
			Remaining  *int64
			ResetIn    *int64 `json:"reset_in_ms"`
			RetryAfter *int64 `json:"retry_after"`
			Never      bool
		}
	}
}

// TestConformance runs the cases of testdata/cases.json, and those of the file that WEIR_CONFORMANCE_FILE names.
func TestConformance(t *testing.T) {
	files := []string{filepath.Join("testdata", "cases.json")}
	if more := os.Getenv("WEIR_CONFORMANCE_FILE"); more != "" {
		files = append(files, more)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var suite struct{ Cases []conformanceCase }
		if err := json.Unmarshal(data, &suite); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(suite.Cases) == 0 {
			t.Fatalf("%s holds no cases", file)
		}
		for _, c := range suite.Cases {
			t.Run(c.ID, func(t *testing.T) { c.run(t) })
		}
	}
}

func (c *conformanceCase) run(t *testing.T) {
	n := startNode(t, 1000)
	for i, step := range c.Steps {
		n.clock.Set(time.UnixMilli(c.Start + step.At))
		got, want := n.check(t, step.Check)[0], step.Expect
		if want.Status == "ERROR" {
			checkError(t, i, got, step.Check)
			continue
		}
		var resetIn *int64
		if got.ResetTime != nil {
			in := *got.ResetTime - c.Start
			resetIn = &in
		}
		if got.Status != want.Status || show(got.Limit) != show(want.Limit) || show(got.Remaining) != show(want.Remaining) ||
			show(resetIn) != show(want.ResetIn) || show(got.RetryAfter) != show(want.RetryAfter) ||
			(got.Metadata["reason"] != "") != want.Never || got.Error != "" {
			t.Fatalf("%s\nstep %d at %d ms: %s\ngot  %s limit %s remaining %s reset %s retry %s reason %q error %q\nwant %s limit %s remaining %s reset %s retry %s never %v",
				c.Title, i, step.At, step.Check,
				got.Status, show(got.Limit), show(got.Remaining), show(resetIn), show(got.RetryAfter), got.Metadata["reason"],
				got.Error,
				want.Status, show(want.Limit), show(want.Remaining), show(want.ResetIn), show(want.RetryAfter), want.Never)
		}
	}
}

// fields are those of a check, one of which each item's error must name.
var fields = []string{"name", "unique_key", "hits", "limit", "duration", "algorithm", "behavior", "burst", "time_zone"}

func checkError(t *testing.T, step int, got result, check json.RawMessage) {
	t.Helper()
	field, _, found := strings.Cut(got.Error, ": ")
	known := false
	for _, name := range fields {
		known = known || field == name
	}
	if got.Status != "ERROR" || !found || !known {
		t.Fatalf("step %d: %s\ngot status %s, error %q; want ERROR and an error that names a field", step, check,
			got.Status, got.Error)
	}
	if got.Limit != nil || got.Remaining != nil || got.ResetTime != nil || got.RetryAfter != nil {
		t.Fatalf("step %d: an ERROR carries numbers: %+v", step, got)
	}
}

func show(n *int64) string {
	if n == nil {
		return "absent"
	}
	return fmt.Sprint(*n)
}
