package config

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"weir/peers"
	"weir/peers/discovery"
	"weir/server"
	"weir/server/node"
)

// contract holds the defaults that users rely on. An empty one means that there is none.
var contract = map[string]string{
	"WEIR_LISTEN": ":8080", "WEIR_ADVERTISE": "", "WEIR_PEERS": "", "WEIR_PEERS_SRV": "", "WEIR_DNS_SERVER": "",
	"WEIR_PEERS_REFRESH": "10s", "WEIR_PEER_SECRET": "", "WEIR_INSECURE_PEERS": "false",
	"WEIR_PEER_TIMEOUT": "500ms", "WEIR_FAILURE_POLICY": "local",
	"WEIR_BATCH_WINDOW": "500us", "WEIR_BATCH_LIMIT": "1000", "WEIR_GLOBAL_INTERVAL": "100ms", "WEIR_GLOBAL_SLACK": "0.01",
	"WEIR_CACHE_SIZE": "1000000", "WEIR_MAX_CONNS": "10000", "WEIR_DRAIN_DELAY": "0s", "WEIR_SHUTDOWN_TIMEOUT": "8s",
	"WEIR_TLS_CERT": "", "WEIR_TLS_KEY": "", "WEIR_TLS_CA": "", "WEIR_ADMIN_TOKEN": "", "WEIR_ADMIN_LISTEN": "",
	"WEIR_LOG_LEVEL": "info", "WEIR_LOG_FORMAT": "json",
}

func TestUsage(t *testing.T) {
	var help bytes.Buffer
	Usage(&help)
	for _, v := range variables {
		line := regexp.MustCompile(`(?m)^  ` + v.name + ` .*$`).FindString(help.String())
		if len(strings.TrimSpace(line)) < len(v.name)+10 {
			t.Errorf("nothing about %s:\n%s", v.name, &help)
		}
		if want := contract[v.name]; want != "" && !strings.Contains(line, "(default "+want+")") {
			t.Errorf("%q doesn't give the default %s", line, want)
		}
	}
}

// TestWrongValues: a value that can't be meant is refused with one line that says which and why.
func TestWrongValues(t *testing.T) {
	for name, values := range map[string][]string{
		"WEIR_LISTEN":    {"8080", "127.0.0.1", "127.0.0.1:99999", ":-1", ":http", "localhost:", "http://127.0.0.1:8080"},
		"WEIR_ADVERTISE": {"10.0.0.3", "10.0.0.3:", "10.0.0.3:99999", "http://10.0.0.3:8080"},
		"WEIR_CACHE_SIZE": {"abc", "0", "-1", "1.5", "1e6", "1_000", " 5", "99999999999999999999",
			"140737488355327"}, // which no machine has memory for
		"WEIR_MAX_CONNS":        {"abc", "0", "-1"},
		"WEIR_DRAIN_DELAY":      {"abc", "500", "-1s", "10 s", "1d", "99999999h"},
		"WEIR_SHUTDOWN_TIMEOUT": {"abc", "8", "-8s"},
		"WEIR_PEERS":            {"10.0.0.3", "10.0.0.3:99999", ","},
		"WEIR_PEERS_SRV":        {"_weir._tcp.exa mple", ".", "a..b"},
		"WEIR_DNS_SERVER":       {"10.0.0.2:", "10.0.0.2:dns", "a b"},
		"WEIR_PEERS_REFRESH":    {"10", "1ms"},
		"WEIR_INSECURE_PEERS":   {"maybe"},
		"WEIR_PEER_TIMEOUT":     {"500", "0s"},
		"WEIR_FAILURE_POLICY":   {"maybe"},
		"WEIR_BATCH_WINDOW":     {"500", "0s"},
		"WEIR_GLOBAL_INTERVAL":  {"100", "9ms", "-1s"},
		"WEIR_GLOBAL_SLACK":     {"1.1", "-0.01", "NaN", "1%"},
		"WEIR_SNAPSHOT":         {"/there/is/nothing", "/", "/dev/null", "/dev/null/x"},
		"WEIR_BATCH_LIMIT":      {"0", "1001"},
		"WEIR_LOG_LEVEL":        {"loud", "fatal", "disabled", "trace", "0", "in\nfo"},
		"WEIR_LOG_FORMAT":       {"xml", "json "},
	} {
		for _, value := range values {
			wantsRefusal(t, name, value)
		}
	}
}

func wantsRefusal(t *testing.T, name, value string) {
	t.Helper()
	_, err := Read([]string{name + "=" + value})
	if err == nil || strings.Contains(err.Error(), "\n") ||
		!strings.HasPrefix(err.Error(), name+"="+strconv.Quote(value)+": ") {
		t.Errorf("%s=%q: want one line with the variable, its value and the reason: %v", name, value, err)
	}
}

// TestUselessAdvertise: no other node could reach this one at such an address.
func TestUselessAdvertise(t *testing.T) {
	for _, value := range []string{":8080", "0.0.0.0:8080", "[::]:8080", "10.0.0.3:0"} {
		wantsRefusal(t, "WEIR_ADVERTISE", value)
	}
}

// TestMessages: the errors say what must be, in the same way for all kinds.
func TestMessages(t *testing.T) {
	for _, want := range []string{
		`WEIR_LISTEN="x": must be host:port, such as 10.0.0.3:8080 or :8080`,
		`WEIR_INSECURE_PEERS="x": must be true or false`,
		`WEIR_FAILURE_POLICY="x": must be local, open or closed`,
		`WEIR_LOG_FORMAT="x": must be json or console`,
		`WEIR_LOG_LEVEL="x": must be debug, info, warn or error`,
		`WEIR_CACHE_SIZE="x": must be a whole number from 1 to 2147483647`,
		`WEIR_BATCH_LIMIT="x": must be a whole number from 1 to 1000`,
		`WEIR_DRAIN_DELAY="x": must be a length of time with its unit, such as 500ms or 10s`,
		`WEIR_GLOBAL_INTERVAL="x": must be a length of time with its unit, such as 500ms or 10s, and at least 10ms`,
		`WEIR_GLOBAL_SLACK="x": must be a number from 0 to 1, such as 0.01`,
	} {
		name, _, _ := strings.Cut(want, "=")
		if _, err := Read([]string{name + "=x"}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	c, err := Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Wrong("WEIR_LISTEN", errors.New("in use")).Error(), `WEIR_LISTEN=":8080": in use`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSeveralWrongValues(t *testing.T) {
	_, err := Read([]string{"WEIR_CACHE_SIZE=abc", "WEIR_LOG_LEVEL=loud", "WEIR_DRAIN_DELAY=1"})
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("want one line: %v", err)
	}
}

// TestSecret: errors don't tell it.
func TestSecret(t *testing.T) {
	for _, wrong := range []string{"hush1,hush2,hush3", "hush hush", "hush,"} {
		_, err := Read([]string{"WEIR_PEER_SECRET=" + wrong})
		if err == nil || !strings.HasPrefix(err.Error(), "WEIR_PEER_SECRET=") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: want the variable without its value: %v", wrong, err)
		}
	}
}

// TestSettingsThatDontGoTogether: what is missing or too much is told by its name.
func TestSettingsThatDontGoTogether(t *testing.T) {
	for _, tt := range []struct {
		environment []string
		says        string
	}{
		{[]string{"WEIR_TLS_KEY=key.pem"}, "WEIR_TLS_CERT"},
		{[]string{"WEIR_TLS_CA=ca.pem"}, "WEIR_TLS_CERT"},
		{[]string{"WEIR_TLS_CERT=cert.pem"}, "WEIR_TLS_KEY"},
		{[]string{"WEIR_TLS_CERT=/nowhere/cert.pem", "WEIR_TLS_KEY=/nowhere/key.pem"}, "/nowhere/cert.pem"},
		{[]string{"WEIR_PEERS=192.0.2.1:8080,192.0.2.3:8080"}, "WEIR_PEER_SECRET"},
		{[]string{"WEIR_PEERS_SRV=_weir._tcp.example"}, "WEIR_PEER_SECRET"},
		{[]string{"WEIR_PEERS=127.0.0.1:8080", "WEIR_PEERS_SRV=_weir._tcp.example"}, "WEIR_PEERS_SRV"},
	} {
		c, err := Read(tt.environment)
		if err != nil {
			t.Fatal(err)
		}
		files, err := c.TLS()
		if err == nil {
			_, err = c.Node(netip.AddrPort{}, files, zerolog.Nop())
		}
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: want one line with %s: %v", tt.environment, tt.says, err)
		}
	}
}

// TestOptions: each variable arrives where it takes effect.
func TestOptions(t *testing.T) {
	c, err := Read([]string{
		"WEIR_LISTEN=:1", "WEIR_ADVERTISE=a:1", "WEIR_PEERS=b:1, A:1", "WEIR_PEER_SECRET=one, two", "WEIR_PEER_TIMEOUT=2s",
		"WEIR_FAILURE_POLICY=open", "WEIR_BATCH_WINDOW=3ms", "WEIR_BATCH_LIMIT=4", "WEIR_GLOBAL_INTERVAL=50ms",
		"WEIR_GLOBAL_SLACK=0.5", "WEIR_CACHE_SIZE=6", "WEIR_MAX_CONNS=7", "WEIR_DRAIN_DELAY=8s",
		"WEIR_SHUTDOWN_TIMEOUT=9s", "WEIR_SNAPSHOT=counts", "WEIR_PEERS_REFRESH=10s",
	})
	if err != nil {
		t.Fatal(err)
	}
	listen, log := netip.MustParseAddrPort("127.0.0.1:1"), zerolog.Nop()
	got, err := c.Node(listen, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	want := node.Options{
		Advertise: "a:1", Listen: listen, Log: log, CacheSize: 6, Policy: node.PolicyOpen, Snapshot: "counts", TuneGC: true,
		Cluster: &node.Cluster{
			Options: peers.Options{Secret: "one", Timeout: 2 * time.Second, BatchWindow: 3 * time.Millisecond,
				BatchLimit: 4},
			Members:        []discovery.Member{{Name: "a:1"}, {Name: "b:1"}},
			GlobalInterval: 50 * time.Millisecond, GlobalSlack: .5, Refresh: 10 * time.Second,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v %+v\nwant %+v %+v", got, got.Cluster, want, want.Cluster)
	}
	doors := server.Options{Log: log, Version: "v", PeerSecrets: []string{"one", "two"}, MaxConns: 7}
	if got := c.Server(nil, nil, log, "v"); !reflect.DeepEqual(got, doors) {
		t.Errorf("got  %+v\nwant %+v", got, doors)
	}
	if c.Listen != ":1" || c.DrainDelay != 8*time.Second || c.ShutdownTimeout != 9*time.Second {
		t.Errorf("%+v", c)
	}
	c, err = Read([]string{"WEIR_PEERS_SRV=_weir._tcp.example", "WEIR_DNS_SERVER=10.0.0.2", "WEIR_INSECURE_PEERS=true"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Node(listen, nil, log); err != nil || got.Cluster.SRV == nil || got.Cluster.Members != nil {
		t.Errorf("%+v, %v", got.Cluster, err)
	}
}

// TestEmptyValues: container tools set what was left out to nothing.
func TestEmptyValues(t *testing.T) {
	var empty []string
	for _, v := range variables {
		empty = append(empty, v.name+"=")
	}
	got, err := Read(empty)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	got.environment, want.environment = nil, nil
	if !reflect.DeepEqual(got, want) || got.CacheSize != 1_000_000 || got.ShutdownTimeout != 8*time.Second {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestUnknownVariable(t *testing.T) {
	c, err := Read([]string{"WEIR_CACHESIZE=10", "WEIR_PEER_SEKRET=hush", "WEIRD=1", "WEIR_CACHE_SIZE=10"})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c.WarnUnknown(zerolog.New(&log))
	text := log.String()
	for _, name := range []string{"WEIR_CACHESIZE", "WEIR_PEER_SEKRET"} {
		if !strings.Contains(text, `{"level":"warn","variable":"`+name+`"`) {
			t.Errorf("nothing about %s: %s", name, text)
		}
	}
	if strings.Count(text, "\n") != 2 || strings.Contains(text, "hush") {
		t.Errorf("a value that may be a secret, or a variable that isn't ours: %s", text)
	}
}

// TestEachVariableHasItsField: a value that differs from the default changes one field.
func TestEachVariableHasItsField(t *testing.T) {
	values := map[string]string{
		"address": ":1", "reachable": "a:1", "nodes": "a:1", "name": "a", "host": "a", "secrets": "a", "file": "a",
		"bool":     "true",
		"fraction": "1", "count": "1", "batch": "1", "span": "1s", "positive": "1s", "interval": "1s", "refresh": "1s",
		"policy": "open", "level": "warn", "format": "console", "": "a",
	}
	usual, err := Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := map[string]bool{}
	for _, v := range variables {
		c, err := Read([]string{v.name + "=" + values[v.kind]})
		if err != nil {
			t.Fatal(err)
		}
		here, there, fields := reflect.ValueOf(*c), reflect.ValueOf(*usual), ""
		for _, f := range reflect.VisibleFields(here.Type()) {
			if f.IsExported() && !here.FieldByIndex(f.Index).Equal(there.FieldByIndex(f.Index)) {
				fields += f.Name
			}
		}
		if want := strings.ReplaceAll(strings.TrimPrefix(v.name, "WEIR_"), "_", ""); strings.ToUpper(fields) != want {
			t.Errorf("%s changes %q", v.name, fields)
		}
		changed[fields] = true
	}
	if fields := reflect.TypeFor[Config]().NumField() - 1; len(changed) != fields {
		t.Errorf("%d of %d fields have a variable", len(changed), fields)
	}
}
