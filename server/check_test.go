package server_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestUnreadableBodies sends what is no message of checks. Where there is an item that could have been counted, it
// comes first, so that reading piece by piece would show.
func TestUnreadableBodies(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 10_000)
	deepObject := strings.Repeat(`{"a":`, 10_000)
	field := func(name, value string) string { return message(item, with(name, value)) }
	double := func(members string) string { return message(item, strings.TrimSuffix(item, "}")+","+members+"}") }
	cases := []struct {
		name, body string
		says       string // what the error must say, besides that there is one
	}{
		{"empty", "", "empty"},
		{"blanks", " \n\t", "byte 3"},
		{"text", "hello", "byte 0"},
		{"form", "rate_limits=n", "byte 0"},
		{"HTML", "<html></html>", "byte 0"},
		{"byte order mark", "\ufeff" + message(item), "byte 0"},
		{"UTF-16", "{\x00\"\x00r\x00", "byte 1"},
		{"NUL", "\x00", "byte 0"},
		{"NUL behind", message(item) + "\x00", "byte " + strconv.Itoa(len(message(item)))},
		{"trailing bytes", message(item) + "x", "byte " + strconv.Itoa(len(message(item)))},
		{"trailing bracket", message(item) + "}", "byte " + strconv.Itoa(len(message(item)))},
		{"two messages", message(item) + message(item), "byte " + strconv.Itoa(len(message(item)))},
		{"two lines", message(item) + "\n" + message(item), "byte"},
		{"two values", message(item) + `"another value"`, "byte " + strconv.Itoa(len(message(item)))},
		{"comment", message(item, "/* another */"+item), "rate_limits"},
		{"comma at the end", `{"rate_limits":[` + item + `,]}`, "rate_limits"},
		{"no comma", `{"rate_limits":[` + item + item + `]}`, "rate_limits"},
		{"single quotes", `{'rate_limits':[]}`, "byte 1"},

		{"no object", `[` + item + `]`, "body"},
		{"string", `"rate_limits"`, "body"},
		{"number", `1`, "body"},
		{"null", `null`, "body"},
		{"no items", `{}`, "rate_limits"},
		{"zero items", `{"rate_limits":[]}`, "rate_limits"},
		{"null for items", `{"rate_limits":null}`, "rate_limits"},
		{"object for items", `{"rate_limits":` + item + `}`, "rate_limits"},
		{"null for an item", message(item, "null"), "rate_limits[1]"},
		{"string for an item", message(item, `"x"`), "rate_limits[1]"},
		{"list for an item", message(item, `[]`), "rate_limits[1]"},
		{"1,001 items", message(slices.Repeat([]string{item}, 1001)...), "1000"},
		{"many more items", message(slices.Repeat([]string{item}, 15_000)...), "1000"},

		{"unknown field of the message", `{"rate_limits":[` + item + `],"ratelimits":1}`, "ratelimits"},
		{"unknown field of an item", field("durration", "1"), "rate_limits[1].durration"},
		{"other case", field("HITS", "1"), "rate_limits[1].HITS"},
		{"field of answers", field("remaining", "1"), "rate_limits[1].remaining"},
		{"long unknown field", field(strings.Repeat("x", 500_000), "1"), "rate_limits[1].xxx"},
		{"odd unknown field", field(strings.Repeat(`\u0000\n`, 1000), "1"), "rate_limits[1]"},
		{"message twice", `{"rate_limits":[` + item + `],"rate_limits":[` + item + `]}`, "rate_limits"},
		{"field twice", double(`"hits":1,"hits":0`), "rate_limits[1].hits"},
		{"field twice, same value", double(`"name":"n"`), "rate_limits[1].name"},
		{"field twice, escaped", double(`"hits":1,"\u0068its":0`), "rate_limits[1].hits"},

		{"fraction", field("hits", "1.5"), "rate_limits[1].hits"},
		{"fraction of zero", field("hits", "1.0"), "rate_limits[1].hits"},
		{"string for a number", field("hits", `"1"`), "rate_limits[1].hits"},
		{"exponent", field("hits", "1e3"), "rate_limits[1].hits"},
		{"minus zero", field("hits", "-0"), "rate_limits[1].hits"},
		{"2^63", field("hits", "9223372036854775808"), "rate_limits[1].hits"},
		{"-2^63-1", field("hits", "-9223372036854775809"), "rate_limits[1].hits"},
		{"2^64", field("limit", "18446744073709551616"), "rate_limits[1].limit"},
		{"400 digits", field("limit", strings.Repeat("9", 400)), "rate_limits[1].limit"},
		{"leading zero", field("hits", "01"), "rate_limits[1]"},
		{"plus", field("hits", "+1"), "rate_limits[1]"},
		{"hexadecimal", field("hits", "0x10"), "rate_limits[1]"},
		{"NaN", field("hits", "NaN"), "rate_limits[1]"},
		{"Infinity", field("hits", "Infinity"), "rate_limits[1]"},
		{"boolean", field("hits", "true"), "rate_limits[1].hits"},
		{"object for a number", field("limit", `{"a":1}`), "rate_limits[1].limit"},
		{"list for a number", field("duration", `[60000]`), "rate_limits[1].duration"},
		{"number for a string", field("unique_key", `123`), "rate_limits[1].unique_key"},
		{"list for a string", field("name", `["n"]`), "rate_limits[1].name"},
		{"fraction for an algorithm", field("algorithm", `1.0`), "rate_limits[1].algorithm"},
		{"list for an algorithm", field("algorithm", `["TOKEN_BUCKET"]`), "rate_limits[1].algorithm"},
		{"object for a behavior", field("behavior", `{}`), "rate_limits[1].behavior"},
		{"number in a list of behaviors", field("behavior", `["GLOBAL",1]`), "rate_limits[1].behavior[1]"},
		{"null in a list of behaviors", field("behavior", `[null]`), "rate_limits[1].behavior[0]"},
		{"list in a list of behaviors", field("behavior", `[["GLOBAL"]]`), "rate_limits[1].behavior[0]"},

		{"invalid UTF-8", field("unique_key", "\"a\xff\""), "rate_limits[1].unique_key"},
		{"overlong UTF-8", field("unique_key", "\"\xc0\xaf\""), "rate_limits[1].unique_key"},
		{"surrogate in UTF-8", field("unique_key", "\"\xed\xa0\x80\""), "rate_limits[1].unique_key"},
		{"cut UTF-8", field("name", "\"\xe2\x82\""), "rate_limits[1].name"},
		{"invalid UTF-8 in a field's name", field("na\xffme", "1"), "rate_limits[1]"},
		{"lone high surrogate", field("unique_key", `"\ud800"`), "rate_limits[1].unique_key"},
		{"lone low surrogate", field("unique_key", `"\udc00"`), "rate_limits[1].unique_key"},
		{"surrogates in the wrong order", field("unique_key", `"\udc00\ud800"`), "rate_limits[1].unique_key"},
		{"unknown escape", field("unique_key", `"\x41"`), "rate_limits[1].unique_key"},
		{"control character", field("unique_key", "\"a\nb\""), "rate_limits[1].unique_key"},

		{"deep body", deep + strings.Repeat("]", 10_000), "body"},
		{"deep body without end", deep, ""},
		{"deep item", message(item, deep+strings.Repeat("]", 10_000)), "rate_limits[1]"},
		{"deep field", field("hits", deep+strings.Repeat("]", 10_000)), "rate_limits[1].hits"},
		{"deep objects", deepObject + "1" + strings.Repeat("}", 10_000), ""},
		{"deep behavior", field("behavior", deep+strings.Repeat("]", 10_000)), "rate_limits[1].behavior[0]"},
		{"as deep as a body can be", strings.Repeat("[", 1<<20), ""},

		{"gzip without saying so", gzipped(message(item)), "byte 0"},
	}
	for _, name := range []string{
		"name", "unique_key", "hits", "limit", "duration", "algorithm", "behavior", "burst", "time_zone",
	} {
		body, says := field(name, "null"), "rate_limits[1]."+name
		cases = append(cases, struct{ name, body, says string }{"null for " + name, body, says})
	}
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for _, tt := range cases {
			t.Run(tt.name, func(t *testing.T) {
				n.check(t, c, tt.body).refusal(t, http.StatusBadRequest, tt.says)
				n.untouched(t, c)
			})
		}
	})
}

// TestTruncatedBodies: no beginning of a message is a message.
func TestTruncatedBodies(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	whole := message(`{"name":"n","unique_key":"k\u00e9","hits":1,"limit":10,"duration":60000,"behavior":["GLOBAL"]}`)
	for end := 1; end < len(whole); end++ {
		n.check(t, c, whole[:end]).refusal(t, http.StatusBadRequest, "byte "+strconv.Itoa(end))
	}
	n.untouched(t, c)
	if got := n.check(t, c, whole).results(t); got[0].Status != "OK" {
		t.Errorf("the whole message: %+v", got)
	}
}

// A stream is a body whose length is not known beforehand: HTTP/1.1 sends it in chunks.
type stream struct{ io.Reader }

func TestBodySizes(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	body := message(with("hits", "0"))
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for _, tt := range []struct {
			size, status int
		}{
			{most - 1, 200},
			{most, 200},
			{most + 1, 413},
			{2 * most, 413},
			{10 * most, 413},
		} {
			text := body + strings.Repeat(" ", tt.size-len(body))
			known, unknown := n.check(t, c, text), do(t, c, n.request(t, "POST", "/v1/check", stream{strings.NewReader(text)}))
			for _, got := range []answer{known, unknown} {
				if tt.status == 200 {
					got.results(t)
				} else {
					got.refusal(t, tt.status, "1 MiB")
				}
			}
			n.untouched(t, c)
		}
	})
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

func TestContentEncoding(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for _, encoding := range []string{"gzip", "GZIP", "br", "deflate", "gzip, identity"} {
			got := n.check(t, c, gzipped(message(item)), "Content-Encoding", encoding)
			got.refusal(t, http.StatusUnsupportedMediaType, "Content-Encoding")
			if accept := got.header.Get("Accept-Encoding"); accept != "identity" {
				t.Errorf("Accept-Encoding %q: it must say what would be accepted", accept)
			}
		}
		n.untouched(t, c)
		n.check(t, c, message(item), "Content-Encoding", "identity").results(t)
	})
}

// TestContentType: whatever a caller says it is, it is JSON.
func TestContentType(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	for _, kind := range []string{
		"", "application/json", "application/x-www-form-urlencoded", "text/plain; charset=latin1", "nonsense",
	} {
		if got := n.check(t, c, message(with("hits", "0")), "Content-Type", kind).results(t); got[0].Status != "OK" {
			t.Errorf("Content-Type %q: %+v", kind, got)
		}
	}
}

// TestItemErrors puts an item that is wrong between two that aren't.
func TestItemErrors(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	gregorian := func(members string) string {
		return `{"name":"n","unique_key":"k","limit":10,"behavior":"DURATION_IS_GREGORIAN",` + members + `}`
	}
	cases := []struct {
		field, item string
	}{
		{"name", with("name", "")},
		{"name", with("name", `""`)},
		{"name", with("name", `" \t"`)},
		{"name", with("name", long(256))},
		{"name", with("name", `"a\u0000b"`)},
		{"unique_key", with("unique_key", "")},
		{"unique_key", with("unique_key", `""`)},
		{"unique_key", with("unique_key", `"\u2003"`)},
		{"unique_key", with("unique_key", long(1025))},
		{"unique_key", with("unique_key", `"\u0000"`)},
		{"unique_key", with("unique_key", `"account=1\u0000"`)},
		{"limit", with("limit", "")},
		{"limit", with("limit", "-1")},
		{"limit", with("limit", "-9223372036854775808")},
		{"duration", with("duration", "")},
		{"duration", with("duration", "0")},
		{"duration", with("duration", "-1")},
		{"duration", with("duration", "316224000001")},
		{"algorithm", with("algorithm", `""`)},
		{"algorithm", with("algorithm", `"token_bucket"`)},
		{"algorithm", with("algorithm", "3")},
		{"algorithm", with("algorithm", "256")},
		{"algorithm", with("algorithm", "-1")},
		{"behavior", with("behavior", `"global"`)},
		{"behavior", with("behavior", `["GLOBAL","FAST"]`)},
		{"behavior", with("behavior", "16")},
		{"behavior", with("behavior", "-1")},
		{"behavior", with("behavior", "4294967296")},
		{"burst", strings.TrimSuffix(with("burst", "-1"), "}") + `,"algorithm":"LEAKY_BUCKET"}`},
		{"duration", gregorian(`"duration":6`)},
		{"duration", gregorian(`"duration":-1`)},
		{"time_zone", gregorian(`"duration":0,"time_zone":"Mars/Olympus"`)},
		{"time_zone", gregorian(`"duration":0,"time_zone":"Local"`)},
		{"time_zone", gregorian(`"duration":0,"time_zone":"../../etc/passwd"`)},
		{"behavior", gregorian(`"duration":0,"algorithm":"SLIDING_WINDOW"`)},
	}
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for i, tt := range cases {
			key := with("unique_key", strconv.Quote(fmt.Sprint("case ", i)))
			a := n.check(t, c, message(key, tt.item, key))
			got := a.results(t)
			if len(got) != 3 || got[0].Status != "OK" || *got[0].Remaining != 9 ||
				got[2].Status != "OK" || *got[2].Remaining != 8 {
				t.Fatalf("%.200s: its neighbours must be decided as ever: %.1000s", tt.item, a.body)
			}
			if got[1].Status != "ERROR" || !strings.HasPrefix(got[1].Error, tt.field+": ") {
				t.Errorf("%.200s: status %s, error %q; want ERROR and %s", tt.item, got[1].Status, got[1].Error, tt.field)
			}
			checkErrorMembers(t, a)
		}
		n.check(t, c, message(with("hits", "0"))).results(t)
		if entries := n.limiter.Stats().Entries; entries != len(cases) {
			t.Errorf("%d entries, want %d: an ERROR must not leave any", entries, len(cases))
		}
	})
}

// checkErrorMembers looks at the second result as it was sent: an ERROR has no number that could be taken for an
// answer.
func checkErrorMembers(t *testing.T, a answer) {
	t.Helper()
	var sent struct {
		RateLimits []map[string]any `json:"rate_limits"`
	}
	if err := json.Unmarshal([]byte(a.body), &sent); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(sent.RateLimits[1])); !slices.Equal(got, []string{"error", "metadata", "status"}) {
		t.Errorf("an ERROR has %q", got)
	}
	if owner := a.results(t)[1].Metadata["owner"]; owner != "node" {
		t.Errorf("an ERROR with owner %q", owner)
	}
}

func TestResult(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		for i, want := range []string{
			`{"rate_limits":[{"status":"OK","limit":10,"remaining":9,"reset_time":1700000060000,"metadata":{"owner":"node"}}]}`,
			`{"rate_limits":[{"status":"OVER_LIMIT","limit":10,"remaining":9,"reset_time":1700000060000,` +
				`"retry_after":60000,"metadata":{"owner":"node"}}]}`,
			`{"rate_limits":[{"status":"OVER_LIMIT","limit":10,"remaining":9,"reset_time":1700000060000,` +
				`"metadata":{"owner":"node","reason":"hits_exceed_capacity"}}]}`,
		} {
			a := n.check(t, c, message(with("hits", []string{"1", "10", "11"}[i])))
			if strings.TrimSuffix(a.body, "\n") != want || a.status != 200 {
				t.Errorf("got  %d %swant 200 %s", a.status, a.body, want)
			}
		}
	})
}

// TestOrder sends as many items as there may be, all different, and finds each result in its place.
func TestOrder(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		var items []string
		for i := range 1000 {
			items = append(items, fmt.Sprintf(`{"name":"n","unique_key":"k%d","limit":%d,"duration":60000}`, i, i+1))
		}
		got := n.check(t, c, message(items...)).results(t)
		if len(got) != len(items) {
			t.Fatalf("%d results for %d items", len(got), len(items))
		}
		for i, r := range got {
			if r.Status != "OK" || *r.Limit != int64(i+1) || *r.Remaining != int64(i) || r.Metadata["owner"] != "node" {
				t.Fatalf("result %d: %+v", i, r)
			}
		}
	})
}

// TestSameKeyTwice: the items of one request that name the same limit are decided in their order.
func TestSameKeyTwice(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, c *http.Client) {
		n := start(t)
		hits := []string{"4", "0", "7", "6", "1", "-3", "0"}
		want := []string{"OK 6", "OK 6", "OVER_LIMIT 6", "OK 0", "OVER_LIMIT 0", "OK 3", "OK 3"}
		var items []string
		for _, h := range hits {
			items = append(items, with("hits", h))
		}
		for i, r := range n.check(t, c, message(items...)).results(t) {
			if got := fmt.Sprint(r.Status, " ", *r.Remaining); got != want[i] {
				t.Errorf("item %d with hits %s: %s, want %s", i, hits[i], got, want[i])
			}
		}
	})
}

// TestNamesAreIndependent: the name belongs to the key, and no two pairs are joined to one.
func TestNamesAreIndependent(t *testing.T) {
	t.Parallel()
	n, c := start(t), newClient(t, 1)
	one := func(name, key string, limit int) string {
		return fmt.Sprintf(`{"name":%q,"unique_key":%q,"limit":%d,"duration":60000}`, name, key, limit)
	}
	got := n.check(t, c, message(
		one("r1", "k", 3), one("r1", "k", 3), one("r1", "k", 3), one("r1", "k", 3),
		one("r2", "k", 5),
		one("a_b", "c", 5), one("a", "b_c", 5), one("a_", "b_c", 5), one("ab", "c", 5), one("a", "bc", 5), one("A", "bc", 5),
	)).results(t)
	want := []int64{2, 1, 0, 0, 4, 4, 4, 4, 4, 4, 4}
	for i, r := range got {
		if *r.Remaining != want[i] {
			t.Errorf("item %d: remaining %d, want %d", i, *r.Remaining, want[i])
		}
	}
}
