package wire

import (
	"reflect"
	"strings"
	"testing"
)

// agree reads a message both ways. Whatever the scanner reads, the strict reader must read as the same.
func agree[Item any](t *testing.T, message []byte, quick func([]Item, []byte) ([]Item, bool), item func(*strict, *Item)) {
	t.Helper()
	fast, ok := quick(nil, message)
	if !ok {
		if len(fast) != 0 {
			t.Fatalf("the scanner leaves something: %+v", fast)
		}
		return
	}
	for _, lenient := range []bool{false, true} {
		s := newStrict(message, lenient)
		slow := readItems(s, nil, item)
		if err := s.end(); err != nil {
			t.Fatalf("the scanner accepts what is wrong: %v\n%q", err, message)
		}
		if len(fast) != len(slow) || len(fast) > 0 && !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%q\nscanner %+v\nstrict  %+v", message, fast, slow)
		}
	}
}

var plainMessages = []string{
	`{"rate_limits":[]}`,
	` { "rate_limits" : [ ] } `,
	`{"rate_limits":[{"name":"a","unique_key":"b","hits":1,"limit":100,"duration":1000}]}` + "\n",
	`{"rate_limits":[{"name":"requests_per_sec","unique_key":"account_id=123|source_ip=172.0.0.1","hits":1,"limit":100,"duration":1000,"algorithm":"TOKEN_BUCKET","behavior":"BATCHING"}]}`,
	"{\n\t\"rate_limits\": [\r\n{\"name\" :\"ключ\", \"unique_key\": \"\", \"hits\": -5, \"limit\":0 ,\"duration\": 999999999999999999},\n{\"limit\":9223372036854775807,\"hits\":-9223372036854775807},\n{}, {\"burst\":7}]}",
	`{"rate_limits":[{"algorithm":2,"behavior":["GLOBAL","NO_BATCHING"],"time_zone":"Europe/Berlin"},{"algorithm":"x","behavior":[]},{"algorithm":-1,"behavior":44}]}`,
	`{"rate_limits":[{"status":"OK","limit":10,"remaining":9,"reset_time":1551309219226,"metadata":{"owner":"10.0.0.3:8080"}},{"status":"OVER_LIMIT","limit":10,"remaining":0,"reset_time":1,"retry_after":17,"metadata":{}},{"status":"ERROR","error":"name: required","metadata":{"degraded":"owner_out","reason":"limit_is_zero"}}]}`,
}

// TestScannerReadsPlainMessages makes sure that the comparison compares something: these are for the scanner.
func TestScannerReadsPlainMessages(t *testing.T) {
	for _, message := range plainMessages {
		_, request := quickRequests(nil, []byte(message))
		_, result := quickResults(nil, []byte(message))
		if !request && !result {
			t.Errorf("the scanner can't read %s", message)
		}
		agree(t, []byte(message), quickRequests, readRequest)
		agree(t, []byte(message), quickResults, readResult)
	}
}

// TestScannerLeavesOddMessages lists what is for the strict reader: most of it wrong, some of it only unusual.
func TestScannerLeavesOddMessages(t *testing.T) {
	for _, message := range []string{
		``, ` `, `{`, `}`, `[]`, `null`, `{} {}`, `{}x`, `{},`, "\xef\xbb\xbf{}", "{}\x00", "\x00", `{"rate_limits"}`, `{"rate_limits":}`,
		`{"rate_limits":[],}`, `{,}`, `{"rate_limits":[,]}`, `{"rate_limits":[{}`, `{"rate_limits":[{},]}`, `{"rate_limits":[{}{}]}`,
		`{"rate_limits":[],"rate_limits":[]}`, `{"rate_limits":{}}`, `{"rate_limits":[{"hits":1,"hits":2}]}`,
		`{"rate_limits":[{"hits":01}]}`, `{"rate_limits":[{"hits":-0}]}`, `{"rate_limits":[{"hits":1.0}]}`, `{"rate_limits":[{"hits":1e3}]}`,
		`{"rate_limits":[{"hits":+1}]}`, `{"rate_limits":[{"hits":- 1}]}`, `{"rate_limits":[{"hits":--1}]}`, `{"rate_limits":[{"hits":1 1}]}`,
		`{"rate_limits":[{"hits":}]}`, `{"rate_limits":[{"hits":"1"}]}`, `{"rate_limits":[{"hits":null}]}`, `{"rate_limits":[{"hits":9223372036854775808}]}`, `{"rate_limits":[{"hits":18446744073709551617}]}`, `{"rate_limits":[{"hits":-9223372036854775808}]}`,
		`{"rate_limits":[{"name":"a\u0062"}]}`, `{"rate_limits":[{"name":"a` + "\n" + `b"}]}`, `{"rate_limits":[{"name":"` + "\xff" + `"}]}`,
		`{"rate_limits":[{"name":"\""}]}`, `{"rate_limits":[{"name":"\\"}]}`, `{"rate_limits":[{"name":"` + strings.Repeat("x", 9) + "\x1f" + `"}]}`,
		`{"rate_limits":[{"n\u0061me":"a"}]}`, `{"rate_limits":[{"Hits":1}]}`, `{"rate_limits":[{"new":1}]}`, `{"rate_limits":[{"name":'a'}]}`,
		`{"rate_limits":[{"name":"a" "hits":1}]}`, `{"rate_limits":[{"name","hits":1}]}`, `{"rate_limits":[{name:"a"}]}`,
		`{"rate_limits":[{"behavior":["GLOBAL",]}]}`, `{"rate_limits":[{"behavior":["GLOBAL" "GLOBAL"]}]}`, `{"rate_limits":[{"behavior":[1]}]}`,
		`{"rate_limits":[{"behavior":["GLOBAL"}]}`, `{"rate_limits":[{]}]}`, `{"rate_limits":[}`, `{"rate_limits":[{"hits":1]}`,
		`{"rate_limits":[` + strings.Repeat("{},", MaxItems) + `}`, `{"rate_limits":[` + strings.Repeat("{},", MaxItems) + `{}]}`,
		"{\f\"rate_limits\":[]}", "{\u00a0}", `{"rate_limits":[]}/*x*/`,
	} {
		if _, ok := quickRequests(nil, []byte(message)); ok {
			t.Errorf("the scanner reads %q", message)
		}
	}
}

// FuzzScanner has both readers read the same, and whatever is read written and read again.
func FuzzScanner(f *testing.F) {
	for _, message := range plainMessages {
		f.Add([]byte(message))
	}
	f.Add([]byte(`{"rate_limits":[{"name":"\u00e9\"","hits":-9223372036854775808,"limit":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		agree(t, message, quickRequests, readRequest)
		agree(t, message, quickResults, readResult)
		requests, err := ReadPeerRequests(nil, message)
		if err != nil {
			return
		}
		for i := range requests { // an unknown algorithm or flag has no form to be written in
			if requests[i].Algorithm > lastAlgorithm || requests[i].Behavior&^knownBehaviors != 0 {
				return
			}
		}
		again, err := ReadPeerRequests(nil, AppendRequests(nil, requests))
		if err != nil || len(again) != len(requests) || len(again) > 0 && !reflect.DeepEqual(again, requests) {
			t.Fatalf("%q\nread    %+v\nwritten %+v, %v", message, requests, again, err)
		}
	})
}
