package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"weir/limits/bucket"
	"weir/limits/wire"
)

// item makes a message of one item with these members behind name and unique_key.
func item(members string) string {
	return `{"rate_limits":[{"name":"n","unique_key":"k",` + members + `}]}`
}

// everyday is a message with all that a caller usually says.
const everyday = `{"rate_limits": [
	{"name": "requests_per_sec", "unique_key": "account_id=123|source_ip=172.0.0.1",
	 "hits": 1, "limit": 100, "duration": 1000, "algorithm": "TOKEN_BUCKET", "behavior": "BATCHING"},
	{"name": "mails", "unique_key": "é\u00e9\ud83d\ude00\n", "hits": -2, "limit": 9223372036854775807, "duration": 4,
	 "algorithm": 1, "behavior": ["GLOBAL", "DURATION_IS_GREGORIAN"], "burst": 7, "time_zone": "Europe/Berlin"}
]}`

func TestReadRequests(t *testing.T) {
	const missing = math.MinInt64 // no valid request has it, so that Prepare finds it missing
	n := bucket.Request{Name: "n", UniqueKey: "k", Hits: 1, Limit: missing, Duration: missing}
	with := func(change func(r *bucket.Request)) []bucket.Request {
		r := n
		change(&r)
		return []bucket.Request{r}
	}
	behaving := func(b bucket.Behavior) []bucket.Request { return with(func(r *bucket.Request) { r.Behavior = b }) }
	for message, want := range map[string][]bucket.Request{
		everyday: {
			{Name: "requests_per_sec", UniqueKey: "account_id=123|source_ip=172.0.0.1", Hits: 1, Limit: 100, Duration: 1000},
			{Name: "mails", UniqueKey: "éé😀\n", Hits: -2, Limit: math.MaxInt64, Duration: 4, Algorithm: bucket.LeakyBucket,
				Behavior: bucket.Global | bucket.DurationIsGregorian, Burst: 7, TimeZone: "Europe/Berlin"},
		},
		`{"rate_limits":[{}]}`:                 {{Hits: 1, Limit: missing, Duration: missing}},
		"\r\n\t {\"rate_limits\" :[ { } ]}\n ": {{Hits: 1, Limit: missing, Duration: missing}},
		`{"rate\u005flimits":[{}]}`:            {{Hits: 1, Limit: missing, Duration: missing}},

		item(`"hits":0`):                     with(func(r *bucket.Request) { r.Hits = 0 }),
		item(`"hits":9223372036854775807`):   with(func(r *bucket.Request) { r.Hits = math.MaxInt64 }),
		item(`"hits":-9223372036854775808`):  with(func(r *bucket.Request) { r.Hits = math.MinInt64 }),
		item(`"h\u0069ts":7`):                with(func(r *bucket.Request) { r.Hits = 7 }),
		item(`"\u0068\u0069\u0074\u0073":7`): with(func(r *bucket.Request) { r.Hits = 7 }),
		item(`"limit":0,"duration":0`):       with(func(r *bucket.Request) { r.Limit, r.Duration = 0, 0 }),
		item(`"limit":-1,"duration":-1`):     with(func(r *bucket.Request) { r.Limit, r.Duration = -1, -1 }),
		item(`"burst":-1,"time_zone":""`):    with(func(r *bucket.Request) { r.Burst = -1 }),

		item(`"algorithm":"TOKEN_BUCKET"`):        with(func(r *bucket.Request) {}),
		item(`"algorithm":"LEAKY_BUCKET"`):        with(func(r *bucket.Request) { r.Algorithm = bucket.LeakyBucket }),
		item(`"algorithm":"SLIDING_WINDOW"`):      with(func(r *bucket.Request) { r.Algorithm = bucket.SlidingWindow }),
		item(`"algorithm":"SLIDING\u005fWINDOW"`): with(func(r *bucket.Request) { r.Algorithm = bucket.SlidingWindow }),
		item(`"algorithm":0`):                     with(func(r *bucket.Request) {}),
		item(`"algorithm":1`):                     with(func(r *bucket.Request) { r.Algorithm = bucket.LeakyBucket }),
		item(`"algorithm":2`):                     with(func(r *bucket.Request) { r.Algorithm = bucket.SlidingWindow }),

		item(`"behavior":"BATCHING"`):                         behaving(0),
		item(`"behavior":"NO_BATCHING"`):                      behaving(bucket.NoBatching),
		item(`"behavior":"GLOBAL"`):                           behaving(bucket.Global),
		item(`"behavior":"DURATION_IS_GREGORIAN"`):            behaving(bucket.DurationIsGregorian),
		item(`"behavior":"RESET_REMAINING"`):                  behaving(bucket.ResetRemaining),
		item(`"behavior":"DRAIN_OVER_LIMIT"`):                 behaving(bucket.DrainOverLimit),
		item(`"behavior":0`):                                  behaving(0),
		item(`"behavior":3`):                                  behaving(bucket.NoBatching | bucket.Global),
		item(`"behavior":47`):                                 behaving(47),
		item(`"behavior":[]`):                                 behaving(0),
		item(`"behavior":["BATCHING"]`):                       behaving(0),
		item(`"behavior":["GLOBAL","BATCHING", "GLOBAL"]`):    behaving(bucket.Global),
		item(`"behavior":["DRAIN_OVER_LIMIT","NO_BATCHING"]`): behaving(bucket.DrainOverLimit | bucket.NoBatching),
	} {
		got, err := wire.ReadRequests(nil, []byte(message))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s\n got %+v, %v\nwant %+v", message, got, err, want)
		}
	}
}

// Values that are well formed but wrong are one item's error, and name their field.
func TestReadRequestsLeavesWrongValuesToCheck(t *testing.T) {
	zones := bucket.NewZones()
	rest := `,"limit":1,"duration":1`
	for members, want := range map[string]string{
		`"limit":1`:                               "duration: ",
		`"duration":1`:                            "limit: ",
		`"algorithm":3` + rest:                    "algorithm: ",
		`"algorithm":-1` + rest:                   "algorithm: ",
		`"algorithm":255` + rest:                  "algorithm: ",
		`"algorithm":256` + rest:                  "algorithm: ",
		`"algorithm":9223372036854775807` + rest:  "algorithm: ",
		`"algorithm":"token_bucket"` + rest:       "algorithm: ",
		`"algorithm":""` + rest:                   "algorithm: ",
		`"algorithm":"UNKNOWN"` + rest:            "algorithm: ",
		`"algorithm":"1"` + rest:                  "algorithm: ",
		`"behavior":16` + rest:                    "behavior: ",
		`"behavior":64` + rest:                    "behavior: ",
		`"behavior":99` + rest:                    "behavior: ",
		`"behavior":-1` + rest:                    "behavior: ",
		`"behavior":256` + rest:                   "behavior: ",
		`"behavior":-9223372036854775808` + rest:  "behavior: ",
		`"behavior":"global"` + rest:              "behavior: ",
		`"behavior":""` + rest:                    "behavior: ",
		`"behavior":"2"` + rest:                   "behavior: ",
		`"behavior":"GLOBAL|NO_BATCHING"` + rest:  "behavior: ",
		`"behavior":["GLOBAL","GLOBALLY"]` + rest: "behavior: ",
		`"behavior":["",""]` + rest:               "behavior: ",
	} {
		got, err := wire.ReadRequests(nil, []byte(item(members)))
		if err != nil {
			t.Errorf("%s: %v", members, err)
			continue
		}
		if err := new(bucket.Query).Prepare(&got[0], zones); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want an error about %s", members, err, want)
		}
	}
}

func TestReadRequestsRefuses(t *testing.T) {
	const (
		notJSON   = "not JSON"
		plain     = "not a plain integer"
		ends      = "ends in the middle"
		twice     = "this field is there twice"
		unknown   = "unknown field"
		beyond    = "beyond 64 bits"
		behind    = "unexpected data after the message"
		inItem    = "rate_limits[0]"
		inHits    = "rate_limits[0].hits: "
		nullValue = "null where "
	)
	for message, want := range map[string][]string{
		"":                                 {"empty body"},
		" \n":                              {ends},
		"hello":                            {notJSON, "byte 0"},
		"{":                                {ends, "byte 1"},
		"{}":                               {"rate_limits: required"},
		"[]":                               {"body: a list where an object is expected"},
		"null":                             {"body: null where an object is expected"},
		"1":                                {"body: a number"},
		`"x"`:                              {"body: a string"},
		"true":                             {"body: true"},
		"nul":                              {ends},
		"[{}]":                             {"body: a list"},
		`{"rate_limits":[]}`:               {"rate_limits: required"},
		`{"rate_limits":null}`:             {"rate_limits: null where a list is expected"},
		`{"rate_limits":{}}`:               {"rate_limits: an object where a list is expected"},
		`{"rate_limits":"x"}`:              {"rate_limits: a string"},
		`{"rate_limits":[null]}`:           {inItem, nullValue},
		`{"rate_limits":[{},null]}`:        {"rate_limits[1]", nullValue},
		`{"rate_limits":[1]}`:              {inItem, "a number where an object is expected"},
		`{"rate_limits":[[]]}`:             {inItem, "a list where an object is expected"},
		`{"rate_limits":[{}],"limits":[]}`: {"limits: unknown field"},
		`{"limits":[{}]}`:                  {"limits: unknown field"},
		`{"RATE_LIMITS":[{}]}`:             {"RATE_LIMITS: unknown field"},
		`{"rate_limits":[{}],"rate_limits":[{}]}`:      {"rate_limits: " + twice},
		`{"rate_limits":[{}],"rate\u005flimits":[{}]}`: {"rate_limits: " + twice},

		// What stands behind the message.
		item(`"hits":1`) + "x":              {behind, "byte 56"},
		item(`"hits":1`) + "{}":             {behind},
		item(`"hits":1`) + "\n null":        {behind},
		item(`"hits":1`) + ",":              {behind},
		item(`"hits":1`) + "\x00":           {behind},
		item(`"hits":1`) + item(`"hits":1`): {behind},
		"\ufeff" + item(`"hits":1`):         {notJSON, "byte 0"},

		// The names of fields.
		item(`"HITS":1`):                             {"rate_limits[0].HITS: " + unknown},
		item(`"Hits":1`):                             {"rate_limits[0].Hits: " + unknown},
		item(`"hits ":1`):                            {"rate_limits[0].hits : " + unknown},
		item(`"durations":1`):                        {"rate_limits[0].durations: " + unknown},
		item(`"":1`):                                 {inItem, unknown},
		item(`"a/b~c":1`):                            {"rate_limits[0].a/b~c: " + unknown},
		item(`"name":"x"`):                           {"rate_limits[0].name: " + twice},
		item(`"hits":1,"hits":1`):                    {inHits + twice},
		item(`"hits":1,"hits":0`):                    {inHits + twice},
		item(`"hits":1,"h\u0069ts":0`):               {inHits + twice},
		item(`"` + strings.Repeat("é", 500) + `":1`): {inItem, "...: " + unknown},
		`{"rate_limits":[{},{"hits":1,"x":1}]}`:      {"rate_limits[1].x: " + unknown},

		// Integers.
		item(`"hits":1.5`):                       {inHits, plain},
		item(`"hits":1.0`):                       {inHits, plain},
		item(`"hits":1e3`):                       {inHits, plain},
		item(`"hits":1E0`):                       {inHits, plain},
		item(`"hits":-0`):                        {inHits, plain},
		item(`"hits":-0.0`):                      {inHits, plain},
		item(`"hits":0e5`):                       {inHits, plain},
		item(`"hits":1e400`):                     {inHits, plain},
		item(`"hits":9223372036854775808`):       {inHits, beyond},
		item(`"hits":-9223372036854775809`):      {inHits, beyond},
		item(`"hits":18446744073709551617`):      {inHits, beyond},
		item(`"limit":9223372036854775808`):      {"rate_limits[0].limit: ", beyond},
		item(`"burst":9223372036854775808`):      {"rate_limits[0].burst: ", beyond},
		item(`"duration":1e3`):                   {"rate_limits[0].duration: ", plain},
		item(`"algorithm":1.0`):                  {"rate_limits[0].algorithm: ", plain},
		item(`"algorithm":18446744073709551616`): {"rate_limits[0].algorithm: ", beyond},
		item(`"behavior":2.5`):                   {"rate_limits[0].behavior: ", plain},
		item(`"behavior":18446744073709551618`):  {"rate_limits[0].behavior: ", beyond},
		item(`"hits":"1"`):                       {inHits, "a string where an integer is expected"},
		item(`"hits":true`):                      {inHits, "true where an integer is expected"},
		item(`"hits":[1]`):                       {inHits, "a list where"},
		item(`"hits":{}`):                        {inHits, "an object where"},
		item(`"hits":01`):                        {notJSON, inItem},
		item(`"hits":+1`):                        {notJSON, inItem},
		item(`"hits":.5`):                        {notJSON, inItem},
		item(`"hits":0x10`):                      {notJSON, inItem},
		item(`"hits":NaN`):                       {notJSON, inItem},
		item(`"hits":-`):                         {notJSON, inItem},
		item(`"hits":１`):                         {notJSON, inItem},

		// null in each place.
		item(`"hits":null`):                     {inHits + nullValue},
		item(`"limit":null`):                    {"rate_limits[0].limit: " + nullValue},
		item(`"duration":null`):                 {"rate_limits[0].duration: " + nullValue},
		item(`"burst":null`):                    {"rate_limits[0].burst: " + nullValue},
		item(`"time_zone":null`):                {"rate_limits[0].time_zone: " + nullValue},
		item(`"algorithm":null`):                {"rate_limits[0].algorithm: " + nullValue},
		item(`"behavior":null`):                 {"rate_limits[0].behavior: " + nullValue},
		item(`"behavior":[null]`):               {"rate_limits[0].behavior[0]: " + nullValue},
		`{"rate_limits":[{"name":null}]}`:       {"rate_limits[0].name: " + nullValue},
		`{"rate_limits":[{"unique_key":null}]}`: {"rate_limits[0].unique_key: " + nullValue},
		item(`"null":null`):                     {"rate_limits[0].null: " + unknown},

		// Other types.
		`{"rate_limits":[{"name":1}]}`:           {"rate_limits[0].name: a number where a string is expected"},
		`{"rate_limits":[{"unique_key":false}]}`: {"rate_limits[0].unique_key: false where a string is expected"},
		item(`"time_zone":0`):                    {"rate_limits[0].time_zone: a number"},
		item(`"algorithm":{}`): {"rate_limits[0].algorithm: an object where " +
			"a name or a number is expected"},
		item(`"algorithm":[0]`):  {"rate_limits[0].algorithm: a list"},
		item(`"algorithm":true`): {"rate_limits[0].algorithm: true"},
		item(`"behavior":{}`): {"rate_limits[0].behavior: an object where " +
			"a name, a list of names or a number is expected"},
		item(`"behavior":["GLOBAL",2]`): {"rate_limits[0].behavior[1]: a number where a string is expected"},
		item(`"behavior":[["GLOBAL"]]`): {"rate_limits[0].behavior[0]: a list"},

		// Text.
		item("\"time_zone\":\"\xff\""):         {"rate_limits[0].time_zone: ", "UTF-8"},
		item("\"time_zone\":\"\xed\xa0\x80\""): {"rate_limits[0].time_zone: ", "UTF-8"},
		item("\"\xff\":1"):                     {inItem, "UTF-8"},
		item(`"time_zone":"\ud800"`):           {"rate_limits[0].time_zone: ", "surrogate"},
		item(`"time_zone":"\udc00\ud800"`):     {"rate_limits[0].time_zone: ", "surrogate"},
		item(`"time_zone":"\ud83dx"`):          {"rate_limits[0].time_zone: ", "surrogate"},
		item("\"time_zone\":\"a\tb\""):         {notJSON, "rate_limits[0].time_zone"},
		item(`"time_zone":"\x"`):               {notJSON, "rate_limits[0].time_zone"},
		item(`"time_zone":"\u12"`):             {notJSON, "rate_limits[0].time_zone"},
		item(`"time_zone":'x'`):                {notJSON, "rate_limits[0].time_zone"},

		// Commas, colons, brackets.
		item(`"hits":1,`):          {notJSON, inItem},
		item(`,"hits":1`):          {notJSON, inItem},
		item(`"hits" 1`):           {notJSON, inItem},
		item(`"hits":1 "limit":1`): {notJSON, inItem},
		item(`hits:1`):             {notJSON, inItem},
		item(`"hits":1 // one`):    {notJSON, inItem},
		`{"rate_limits":[{},]}`:    {notJSON, "rate_limits"},
		`{"rate_limits":[{}{}]}`:   {notJSON, "rate_limits"},
		`{"rate_limits":[{}}]`:     {notJSON, "rate_limits"},
		`{"rate_limits":[{}]]`:     {notJSON, "byte"},
		`{"rate_limits":[{}],}`:    {notJSON, "byte"},
		`{'rate_limits':[{}]}`:     {notJSON, "byte 1"},

		// Depth.
		strings.Repeat("[", 20_000):                                              {"body: a list"},
		strings.Repeat(`{"rate_limits":`, 20_000):                                {"rate_limits: an object"},
		`{"rate_limits":` + strings.Repeat("[", 20_000):                          {inItem, "a list"},
		item(`"behavior":` + strings.Repeat("[", 20_000)):                        {"rate_limits[0].behavior[0]: a list"},
		item(`"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)): {"rate_limits[0].x: " + unknown},
	} {
		got, err := wire.ReadRequests(nil, []byte(message))
		if err == nil {
			t.Errorf("%.200s\nwas read as %+v", message, got)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%.200s\n got %v\nwant %s", message, err, part)
			}
		}
		if len(err.Error()) > 400 {
			t.Errorf("%.200s\nthe error has %d bytes", message, len(err.Error()))
		}
	}
}

func TestReadRequestsTruncated(t *testing.T) {
	for size := range len(everyday) {
		if got, err := wire.ReadRequests(nil, []byte(everyday[:size])); err == nil {
			t.Errorf("%d of %d bytes were read as %+v", size, len(everyday), got)
		} else if size > 0 && !strings.Contains(err.Error(), fmt.Sprint("ends in the middle, at byte ", size)) {
			t.Errorf("%d of %d bytes: %v", size, len(everyday), err)
		}
	}
}

func TestReadRequestsCounts(t *testing.T) {
	message := func(items int) []byte {
		return []byte(`{"rate_limits":[` + strings.Repeat("{},", items-1) + "{}]}")
	}
	if got, err := wire.ReadRequests(nil, message(1000)); err != nil || len(got) != 1000 {
		t.Errorf("1,000 items: %d, %v", len(got), err)
	}
	_, err := wire.ReadRequests(nil, message(1001))
	if err == nil || !strings.Contains(err.Error(), "more than 1000 items") {
		t.Errorf("1,001 items: %v", err)
	}
	// What is there already belongs to other messages.
	dst := make([]bucket.Request, 500, 2000)
	dst[499].Name = "before"
	got, err := wire.ReadRequests(dst, message(1000))
	if err != nil || len(got) != 1500 || got[499].Name != "before" || got[500].Hits != 1 {
		t.Errorf("appended to 500: %d, %v", len(got), err)
	}
	if _, err := wire.ReadRequests(dst, []byte(`{"rate_limits":[]}`)); err == nil {
		t.Error("a message without items is read when there are others")
	}
}

// TestReadRequestsAnyByte changes each byte of a message into some others, and compares the verdict with the model's.
func TestReadRequestsAnyByte(t *testing.T) {
	for at := range len(everyday) {
		for _, b := range []byte("\x00 \",.-0:eu[]{}\\\xc3") {
			message := []byte(everyday)
			message[at] = b
			compareWithModel(t, message)
		}
		compareWithModel(t, []byte(everyday[:at]+everyday[at+1:]))
	}
}

// plainMessages are in the form that nearly all messages have.
var plainMessages = []string{
	`{"rate_limits":[]}`,
	` { "rate_limits" : [ ] } `,
	`{"rate_limits":[{"name":"a","unique_key":"b","hits":1,"limit":100,"duration":1000}]}` + "\n",
	`{"rate_limits":[{"name":"requests_per_sec","unique_key":"account_id=123|source_ip=172.0.0.1","hits":1,"limit":100,` +
		`"duration":1000,"algorithm":"TOKEN_BUCKET","behavior":"BATCHING"}]}`,
	"{\n\t\"rate_limits\": [\r\n{\"name\" :\"ключ\", \"unique_key\": \"\", \"hits\": -5, \"limit\":0 ," +
		"\"duration\": 999999999999999999},\n{\"limit\":9223372036854775807,\"hits\":-9223372036854775807},\n{}, " +
		"{\"burst\":7}]}",
	`{"rate_limits":[{"algorithm":2,"behavior":["GLOBAL","NO_BATCHING"],"time_zone":"Europe/Berlin"},{"algorithm":"x",` +
		`"behavior":[]},{"algorithm":-1,"behavior":44}]}`,
	`{"rate_limits":[{"status":"OK","limit":10,"remaining":9,"reset_time":1551309219226,` +
		`"metadata":{"owner":"10.0.0.3:8080"}},{"status":"OVER_LIMIT","limit":10,"remaining":0,"reset_time":1,` +
		`"retry_after":17,"metadata":{}},{"status":"ERROR","error":"name: required","metadata":{"degraded":"owner_out",` +
		`"reason":"limit_is_zero"}}]}`,
}

// TestReadPlainMessages reads messages as nearly all are, of requests and of results.
func TestReadPlainMessages(t *testing.T) {
	for _, message := range plainMessages {
		requests, err := wire.ReadPeerRequests(nil, []byte(message))
		_, resultErr := wire.ReadPeerResults(nil, []byte(message))
		if err != nil && resultErr != nil {
			t.Errorf("%s: %v, %v", message, err, resultErr)
		}
		if err == nil {
			compareWithModel(t, []byte(message))
			checkSame(t, requests)
		}
	}
}

// checkSame writes requests and reads them again, unless they have something that can't be written.
func checkSame(t *testing.T, requests []bucket.Request) {
	t.Helper()
	for i := range requests {
		if requests[i].Algorithm > bucket.SlidingWindow || requests[i].Behavior&^111 != 0 {
			return
		}
	}
	again, err := wire.ReadPeerRequests(nil, wire.AppendRequests(nil, requests))
	if err != nil || len(again) != len(requests) || len(again) > 0 && !reflect.DeepEqual(again, requests) {
		t.Fatalf("read    %+v\nwritten %+v, %v", requests, again, err)
	}
}

// TestReadOddMessages reads messages that are wrong, or only unusual.
func TestReadOddMessages(t *testing.T) {
	for _, message := range []string{
		``, ` `, `{`, `}`, `[]`, `null`, `{} {}`, `{}x`, `{},`, "\xef\xbb\xbf{}", "{}\x00", "\x00", `{"rate_limits"}`,
		`{"rate_limits":}`,
		`{"rate_limits":[],}`, `{,}`, `{"rate_limits":[,]}`, `{"rate_limits":[{}`, `{"rate_limits":[{},]}`,
		`{"rate_limits":[{}{}]}`,
		`{"rate_limits":[],"rate_limits":[]}`, `{"rate_limits":{}}`, `{"rate_limits":[{"hits":1,"hits":2}]}`,
		`{"rate_limits":[{"hits":01}]}`, `{"rate_limits":[{"hits":-0}]}`, `{"rate_limits":[{"hits":1.0}]}`,
		`{"rate_limits":[{"hits":1e3}]}`,
		`{"rate_limits":[{"hits":+1}]}`, `{"rate_limits":[{"hits":- 1}]}`, `{"rate_limits":[{"hits":--1}]}`,
		`{"rate_limits":[{"hits":1 1}]}`,
		`{"rate_limits":[{"hits":}]}`, `{"rate_limits":[{"hits":"1"}]}`, `{"rate_limits":[{"hits":null}]}`,
		`{"rate_limits":[{"hits":9223372036854775808}]}`, `{"rate_limits":[{"hits":18446744073709551617}]}`,
		`{"rate_limits":[{"hits":-9223372036854775808}]}`,
		`{"rate_limits":[{"name":"a\u0062"}]}`, "{\"rate_limits\":[{\"name\":\"a\nb\"}]}",
		"{\"rate_limits\":[{\"name\":\"\xff\"}]}",
		`{"rate_limits":[{"name":"\""}]}`, `{"rate_limits":[{"name":"\\"}]}`,
		"{\"rate_limits\":[{\"name\":\"xxxxxxxxx\x1f\"}]}",
		`{"rate_limits":[{"n\u0061me":"a"}]}`, `{"rate_limits":[{"Hits":1}]}`, `{"rate_limits":[{"new":1}]}`,
		`{"rate_limits":[{"name":'a'}]}`,
		`{"rate_limits":[{"name":"a" "hits":1}]}`, `{"rate_limits":[{"name","hits":1}]}`, `{"rate_limits":[{name:"a"}]}`,
		`{"rate_limits":[{"behavior":["GLOBAL",]}]}`, `{"rate_limits":[{"behavior":["GLOBAL" "GLOBAL"]}]}`,
		`{"rate_limits":[{"behavior":[1]}]}`,
		`{"rate_limits":[{"behavior":["GLOBAL"}]}`, `{"rate_limits":[{]}]}`, `{"rate_limits":[}`,
		`{"rate_limits":[{"hits":1]}`,
		`{"rate_limits":[` + strings.Repeat("{},", wire.MaxItems) + `}`,
		`{"rate_limits":[` + strings.Repeat("{},", wire.MaxItems) + `{}]}`,
		"{\f\"rate_limits\":[]}", "{\u00a0}", `{"rate_limits":[]}/*x*/`,
	} {
		compareWithModel(t, []byte(message))
	}
}

// modelItem is a request as read by the model, with what a Request cannot say.
type modelItem struct {
	bucket.Request
	noLimit, noDuration, oddAlgorithm, oddBehavior bool
}

// A member is one of a JSON object; a jsonObject keeps their order, and those that are there twice.
type (
	member struct {
		name  string
		value any
	}
	jsonObject []member
)

// readTree reads any JSON value by means of encoding/json, as a jsonObject, []any, string, json.Number, bool or nil.
func readTree(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		o := jsonObject{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := readTree(d)
			if err != nil {
				return nil, err
			}
			o = append(o, member{name.(string), value})
		}
		_, err := d.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := readTree(d)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err := d.Token()
		return list, err
	}
	return token, nil
}

// modelRead returns what a message means by the contract. It must be refused if ok is false.
func modelRead(message []byte, lenient bool) (items []modelItem, ok bool) {
	if !json.Valid(message) || !utf8.Valid(message) || hasLoneSurrogate(message) {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(message))
	d.UseNumber()
	tree, err := readTree(d)
	if err != nil || hasDuplicates(tree) {
		return nil, false
	}
	body, ok := tree.(jsonObject)
	if !ok {
		return nil, false
	}
	for _, m := range body {
		list, ok := m.value.([]any)
		switch {
		case m.name != "rate_limits" && lenient:
			continue
		case m.name != "rate_limits" || !ok || len(list) > 1000:
			return nil, false
		}
		for _, value := range list {
			item, ok := modelReadItem(value, lenient)
			if !ok {
				return nil, false
			}
			items = append(items, item)
		}
	}
	return items, lenient || len(items) > 0
}

func modelReadItem(value any, lenient bool) (item modelItem, ok bool) {
	members, ok := value.(jsonObject)
	if !ok {
		return item, false
	}
	item = modelItem{Request: bucket.Request{Hits: 1}, noLimit: true, noDuration: true}
	integers := map[string]*int64{
		"hits": &item.Hits, "limit": &item.Limit, "duration": &item.Duration, "burst": &item.Burst,
	}
	texts := map[string]*string{"name": &item.Name, "unique_key": &item.UniqueKey, "time_zone": &item.TimeZone}
	for _, m := range members {
		ok := true
		switch {
		case integers[m.name] != nil:
			*integers[m.name], ok = plainInteger(m.value)
			item.noLimit = item.noLimit && m.name != "limit"
			item.noDuration = item.noDuration && m.name != "duration"
		case texts[m.name] != nil:
			*texts[m.name], ok = m.value.(string)
		case m.name == "algorithm":
			names := map[string]bucket.Algorithm{"TOKEN_BUCKET": 0, "LEAKY_BUCKET": 1, "SLIDING_WINDOW": 2}
			if name, isText := m.value.(string); isText {
				a, known := names[name]
				item.Algorithm, item.oddAlgorithm = a, !known
				break
			}
			var n int64
			n, ok = plainInteger(m.value)
			item.Algorithm, item.oddAlgorithm = bucket.Algorithm(n), n < 0 || n > 2
		case m.name == "behavior":
			ok = item.readBehavior(m.value)
		default:
			ok = lenient
		}
		if !ok {
			return item, false
		}
	}
	return item, true
}

func (i *modelItem) readBehavior(value any) bool {
	list, isList := value.([]any)
	if _, isText := value.(string); isText {
		list, isList = []any{value}, true
	}
	if !isList {
		n, ok := plainInteger(value)
		i.Behavior, i.oddBehavior = bucket.Behavior(n), n&^47 != 0
		return ok
	}
	flags := map[string]bucket.Behavior{
		"BATCHING": 0, "NO_BATCHING": 1, "GLOBAL": 2, "DURATION_IS_GREGORIAN": 4, "RESET_REMAINING": 8,
		"DRAIN_OVER_LIMIT": 32,
	}
	for _, value := range list {
		name, ok := value.(string)
		if !ok {
			return false
		}
		flag, known := flags[name]
		i.Behavior |= flag
		i.oddBehavior = i.oddBehavior || !known
	}
	return true
}

func plainInteger(value any) (int64, bool) {
	number, ok := value.(json.Number)
	n, err := strconv.ParseInt(number.String(), 10, 64)
	return n, ok && err == nil && strconv.FormatInt(n, 10) == number.String()
}

func hasDuplicates(value any) bool {
	switch v := value.(type) {
	case jsonObject:
		seen := map[string]bool{}
		for _, m := range v {
			if seen[m.name] || hasDuplicates(m.value) {
				return true
			}
			seen[m.name] = true
		}
	case []any:
		for _, element := range v {
			if hasDuplicates(element) {
				return true
			}
		}
	}
	return false
}

// hasLoneSurrogate looks for half of a surrogate pair, which encoding/json replaces. The message is valid otherwise.
func hasLoneSurrogate(message []byte) bool {
	escaped := func(at int) (uint64, bool) {
		if at+6 > len(message) || message[at] != '\\' || message[at+1] != 'u' {
			return 0, false
		}
		code, err := strconv.ParseUint(string(message[at+2:at+6]), 16, 16)
		return code, err == nil
	}
	for i := 0; i < len(message); i++ {
		if message[i] != '\\' {
			continue
		}
		code, _ := escaped(i)
		low, isEscape := escaped(i + 6)
		switch {
		case 0xdc00 <= code && code < 0xe000:
			return true
		case 0xd800 <= code && code < 0xdc00:
			if !isEscape || low < 0xdc00 || low >= 0xe000 {
				return true
			}
			i += 6
		}
		i++ // past what is escaped, which may be a backslash
	}
	return false
}

// compareWithModel reads a message as a client's and as a peer's.
func compareWithModel(t *testing.T, message []byte) {
	t.Helper()
	for _, read := range []struct {
		name    string
		read    func([]bucket.Request, []byte) ([]bucket.Request, error)
		lenient bool
	}{
		{"ReadRequests", wire.ReadRequests, false},
		{"ReadPeerRequests", wire.ReadPeerRequests, true},
	} {
		want, ok := modelRead(message, read.lenient)
		got, err := read.read(nil, bytes.Clone(message))
		if err != nil && err.Error() == "not readable" {
			t.Errorf("%s of %q finds nothing wrong", read.name, message)
		}
		if (err == nil) != ok {
			t.Errorf("%s of %q returned %v; want it read: %v", read.name, message, err, ok)
			continue
		}
		if !ok {
			continue
		}
		if len(got) != len(want) {
			t.Errorf("%s of %q: %d items, want %d", read.name, message, len(got), len(want))
			continue
		}
		for i, g := range got {
			w := want[i]
			wrong := (g.Algorithm.String() == "UNKNOWN") != w.oddAlgorithm || (g.Behavior&^47 != 0) != w.oddBehavior ||
				w.noLimit && g.Limit >= 0 || w.noDuration && g.Duration >= 0
			// What is wrong need not be the same wrong thing.
			if w.oddAlgorithm {
				g.Algorithm, w.Algorithm = 0, 0
			}
			if w.oddBehavior {
				g.Behavior, w.Behavior = 0, 0
			}
			if w.noLimit {
				g.Limit, w.Limit = 0, 0
			}
			if w.noDuration {
				g.Duration, w.Duration = 0, 0
			}
			if wrong || g != w.Request {
				t.Errorf("%s of %q: %+v, want %+v", read.name, message, got[i], want[i])
			}
		}
	}
}

func FuzzReadRequests(f *testing.F) {
	for _, seed := range []string{
		everyday, "", "{}", `{"rate_limits":[]}`, item(`"hits":1`), item(`"h\u0069ts":-0`),
		item(`"behavior":["GLOBAL",""],"algorithm":7`),
		item(`"x":{"a":[1,null,"\ud800"],"a":2}`), item(`"behavior":47,"burst":1e2`), `{"rate_limits":[{},{}],"y":null}`,
	} {
		f.Add([]byte(seed))
	}
	for _, message := range plainMessages {
		f.Add([]byte(message))
	}
	f.Add([]byte(`{"rate_limits":[{"name":"\u00e9\"","hits":-9223372036854775808,"limit":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		compareWithModel(t, message)
		if requests, err := wire.ReadPeerRequests(nil, message); err == nil {
			checkSame(t, requests)
		}
	})
}

// TestReadPeerRequests checks what is different in messages of other nodes, which may be newer.
func TestReadPeerRequests(t *testing.T) {
	newer := `{"version":[2,{"x":null}],"rate_limits":[{"name":"n","weight":{"hits":[1]},"hits":2}],` +
		`"x":{"rate_limits":[]}}`
	got, err := wire.ReadPeerRequests(nil, []byte(newer))
	if err != nil || len(got) != 1 || got[0].Name != "n" || got[0].Hits != 2 {
		t.Errorf("%s: %+v, %v", newer, got, err)
	}
	for _, message := range []string{`{}`, `{"rate_limits":[]}`, `{"x":1}`} {
		if got, err := wire.ReadPeerRequests(nil, []byte(message)); err != nil || len(got) != 0 {
			t.Errorf("%s: %+v, %v", message, got, err)
		}
	}
	for _, message := range []string{``, `[]`, `null`, `{"x":}`, `{"x":1,"x":1}`, `{"rate_limits":null}`,
		`{"rate_limits":[{"hits":null}]}`,
		newer + "x", newer[:len(newer)-1], item(`"x":"\ud800"`), item(`"x":` + strings.Repeat("[", 20_000))} {
		if got, err := wire.ReadPeerRequests(nil, []byte(message)); err == nil {
			t.Errorf("%.100s was read as %+v", message, got)
		}
	}
}

// anyText draws text of all kinds.
func anyText(random *rand.Rand) string {
	parts := []string{"a", "key", `"`, `\`, "/", "\n", "\x01", "\x7f", "é", "€", "😀", "\u2028", "<&>", " ", "|=",
		"\ufffd"}
	var b strings.Builder
	for range 1 + random.IntN(6) {
		b.WriteString(parts[random.IntN(len(parts))])
	}
	return b.String()
}

func TestRequestsRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	numbers := []int64{0, 1, -1, 7, 1000, math.MaxInt64, math.MinInt64, 1<<53 + 1}
	for range 500 {
		requests := make([]bucket.Request, 1+random.IntN(4))
		for i := range requests {
			number := func() int64 { return numbers[random.IntN(len(numbers))] }
			requests[i] = bucket.Request{
				Name: anyText(random), UniqueKey: anyText(random), Hits: number(), Limit: number(), Duration: number(),
				Burst:     number(),
				Algorithm: bucket.Algorithm(random.IntN(3)), Behavior: bucket.Behavior(random.IntN(48)) &^ 16,
			}
			if random.IntN(2) == 0 {
				requests[i].TimeZone = anyText(random)
			}
		}
		message := wire.AppendRequests([]byte(nil), requests)
		compareWithModel(t, message)
		for _, read := range []func([]bucket.Request, []byte) ([]bucket.Request, error){
			wire.ReadRequests, wire.ReadPeerRequests,
		} {
			got, err := read(nil, message)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(requests) {
				t.Fatalf("%s\n got %+v, %v\nwant %+v", message, got, err, requests)
			}
		}
	}
}

// resultJSON is what a client makes of a result.
type resultJSON struct {
	Status     string            `json:"status"`
	Limit      *int64            `json:"limit"`
	Remaining  *int64            `json:"remaining"`
	ResetTime  *int64            `json:"reset_time"`
	RetryAfter *int64            `json:"retry_after"`
	Error      *string           `json:"error"`
	Metadata   map[string]string `json:"metadata"`
}

func TestAppendResults(t *testing.T) {
	results := []bucket.Result{
		{Status: bucket.StatusOK, Limit: 100, Remaining: 99, ResetTime: 1551309219226,
			Metadata: bucket.Metadata{Owner: "10.0.0.3:8080"}},
		{Status: bucket.StatusOverLimit, Limit: 5, ResetTime: 1, RetryAfter: 1500},
		{Status: bucket.StatusOverLimit, ResetTime: math.MaxInt64, Metadata: bucket.Metadata{
			Owner: "a", Degraded: "b", Reason: bucket.ReasonLimitZero}},
		{Error: "limit: required"},
		{},
		{Status: bucket.Status(77), Limit: 1, Remaining: 1}, // nothing unknown reads as allowed
	}
	const want = `{"rate_limits":[` +
		`{"status":"OK","limit":100,"remaining":99,"reset_time":1551309219226,"metadata":{"owner":"10.0.0.3:8080"}},` +
		`{"status":"OVER_LIMIT","limit":5,"remaining":0,"reset_time":1,"retry_after":1500,"metadata":{}},` +
		`{"status":"OVER_LIMIT","limit":0,"remaining":0,"reset_time":9223372036854775807,` +
		`"metadata":{"owner":"a","degraded":"b","reason":"limit_is_zero"}},` +
		`{"status":"ERROR","error":"limit: required","metadata":{}},` +
		`{"status":"ERROR","error":"","metadata":{}},` +
		`{"status":"ERROR","error":"","metadata":{}}]}` + "\n"
	if got := string(wire.AppendResults(nil, results)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(wire.AppendResults([]byte("before"), nil)); got != `before{"rate_limits":[]}`+"\n" {
		t.Errorf("no results: %s", got)
	}
}

func TestResultsRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		var r bucket.Result
		switch r.Status = bucket.Status(random.IntN(3)); r.Status {
		case bucket.StatusError:
			r.Error = anyText(random)
		case bucket.StatusOverLimit:
			r.RetryAfter = random.Int64() >> random.IntN(64)
			fallthrough
		default:
			r.Limit, r.Remaining, r.ResetTime = random.Int64(), random.Int64()>>random.IntN(64), random.Int64()
		}
		if random.IntN(2) == 0 {
			r.Metadata = bucket.Metadata{Owner: anyText(random), Degraded: anyText(random), Reason: anyText(random)}
		}
		message := wire.AppendResults(nil, []bucket.Result{r, r})

		var client struct {
			Results []resultJSON `json:"rate_limits"`
		}
		d := json.NewDecoder(bytes.NewReader(message))
		d.DisallowUnknownFields()
		if err := d.Decode(&client); err != nil || len(client.Results) != 2 {
			t.Fatalf("%s: %v", message, err)
		}
		c := client.Results[1]
		equal := func(p *int64, want int64) bool { return p != nil && *p == want }
		ok := c.Status == r.Status.String() && c.Metadata["owner"] == r.Metadata.Owner &&
			c.Metadata["degraded"] == r.Metadata.Degraded && c.Metadata["reason"] == r.Metadata.Reason
		if r.Status == bucket.StatusError {
			ok = ok && c.Error != nil && *c.Error == r.Error && c.Limit == nil && c.Remaining == nil && c.ResetTime == nil &&
				c.RetryAfter == nil
		} else {
			ok = ok && c.Error == nil && equal(c.Limit, r.Limit) && equal(c.Remaining, r.Remaining) &&
				equal(c.ResetTime, r.ResetTime) &&
				(c.RetryAfter == nil && r.RetryAfter == 0 || equal(c.RetryAfter, r.RetryAfter))
		}
		if !ok {
			t.Fatalf("%+v became %s", r, message)
		}

		peer, err := wire.ReadPeerResults(nil, message)
		if err != nil || len(peer) != 2 || peer[0] != r || peer[1] != r {
			t.Fatalf("%+v became %s, and that %+v, %v", r, message, peer, err)
		}
	}
}

// Error texts may repeat what a caller sent. Whatever that is, the answer is JSON, and tells it in UTF-8.
func TestAppendResultsWithOddText(t *testing.T) {
	for text, want := range map[string]string{
		"\xff":             "\ufffd",
		"a\xc3":            "a\ufffd",
		"\xed\xa0\x80":     "\ufffd\ufffd\ufffd",
		"\x00\x1f\x7f\"\\": "\x00\x1f\x7f\"\\",
		"</script>":        "</script>",
		"\u2028\u2029":     "\u2028\u2029",
	} {
		message := wire.AppendResults(nil, []bucket.Result{{Error: text, Metadata: bucket.Metadata{Owner: text}}})
		var client struct {
			Results []resultJSON `json:"rate_limits"`
		}
		if err := json.Unmarshal(message, &client); err != nil || !utf8.Valid(message) {
			t.Errorf("%q became %q: %v", text, message, err)
			continue
		}
		if c := client.Results[0]; *c.Error != want || c.Metadata["owner"] != want {
			t.Errorf("%q became %q", text, message)
		}
	}
}

func TestReadPeerResults(t *testing.T) {
	got, err := wire.ReadPeerResults([]bucket.Result{{Limit: 7}}, []byte(`{"x":[],"rate_limits":[
		{"metadata":{"reason":"r","owner":"o","x":{}},"retry_after":3,"reset_time":2,"remaining":1,
			"limit":9,"status":"OVER_LIMIT","x":1},
		{"status":"ERROR","error":"e"},{}]}`))
	want := []bucket.Result{{Limit: 7},
		{Status: bucket.StatusOverLimit, Limit: 9, Remaining: 1, ResetTime: 2, RetryAfter: 3,
			Metadata: bucket.Metadata{Owner: "o", Reason: "r"}},
		{Error: "e"}, {}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	result := func(members string) string { return `{"rate_limits":[{` + members + `}]}` }
	for message, want := range map[string]string{
		``:                                    "empty",
		`<html>`:                              "not JSON",
		`[]`:                                  "a list",
		`{"rate_limits":{}}`:                  "rate_limits: an object",
		result(`"status":"ok"`):               "rate_limits[0].status: unknown status",
		result(`"status":""`):                 "rate_limits[0].status: unknown status",
		result(`"status":1`):                  "rate_limits[0].status: a number",
		result(`"status":null`):               "rate_limits[0].status: null",
		result(`"status":"OK","status":"OK"`): "twice",
		result(`"limit":1.5`):                 "rate_limits[0].limit: not a plain integer",
		result(`"remaining":"1"`):             "rate_limits[0].remaining: a string",
		result(`"reset_time":1e9`):            "rate_limits[0].reset_time: not a plain integer",
		result(`"error":1`):                   "rate_limits[0].error: a number",
		result(`"metadata":[]`):               "rate_limits[0].metadata: a list",
		result(`"metadata":{"owner":1}`):      "rate_limits[0].metadata.owner: a number",
		result(``) + result(``):               "after the message",
	} {
		if got, err := wire.ReadPeerResults(nil, []byte(message)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", message, got, err, want)
		}
	}
	whole := wire.AppendResults(nil, want)
	for size := range len(whole) - 1 { // the last byte is a line's end
		if got, err := wire.ReadPeerResults(nil, whole[:size]); err == nil {
			t.Errorf("%d of %d bytes were read as %+v", size, len(whole), got)
		}
	}
}

// FuzzReadPeerResults makes sure that no answer of a peer breaks a node, and that what is read can be passed on.
func FuzzReadPeerResults(f *testing.F) {
	f.Add([]byte(`{"rate_limits":[{"status":"OK","limit":1,"remaining":1,"reset_time":1,"metadata":{"owner":"o"}},` +
		`{"error":"e"}]}`))
	f.Add([]byte(`{"rate_limits":[{"status":"OVER_LIMIT","retry_after":-1,"x":[{}]}],"y":1}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		first, err := wire.ReadPeerResults(nil, message)
		if err != nil {
			return
		}
		for i := range first {
			if r := &first[i]; r.Status == bucket.StatusError {
				*r = bucket.Result{Error: r.Error, Metadata: r.Metadata} // the rest is not passed on
			} else {
				r.Error, r.RetryAfter = "", max(0, r.RetryAfter)
			}
		}
		second, err := wire.ReadPeerResults(nil, wire.AppendResults(nil, first))
		if err != nil || fmt.Sprint(first) != fmt.Sprint(second) {
			t.Errorf("%q\nfirst  %+v\nsecond %+v, %v", message, first, second, err)
		}
	})
}
