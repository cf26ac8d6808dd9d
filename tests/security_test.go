package tests

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"weir/limits/wire"
	"weir/server"
	member "weir/server/node"
)

// A journal is a log that a test can read. It is safe for concurrent use.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// find returns the lines with a message.
func (j *journal) find(message string) (found []map[string]any) {
	for line := range strings.Lines(j.String()) {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && entry["message"] == message {
			found = append(found, entry)
		}
	}
	return found
}

// journals makes a log for each node of a cluster.
func journals(n int, level zerolog.Level) ([]*journal, setting) {
	all := make([]*journal, n)
	for i := range all {
		all[i] = &journal{}
	}
	return all, func(i int, m *member.Options, s *server.Options) {
		log := zerolog.New(all[i]).Level(level)
		m.Log, s.Log = log, log
	}
}

// peerCall posts a batch of one hit as a peer would, and returns the status.
func (n *node) peerCall(t *testing.T, client *http.Client, headers ...string) int {
	t.Helper()
	body := fmt.Sprintf(`{"rate_limits":[%s]}`, item("posted"))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+wire.BatchPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestPeerSecret tries to count as a peer without the secret, with another one, and with what resembles it.
func TestPeerSecret(t *testing.T) {
	const secret = "correct-horse"
	logs, logging := journals(2, zerolog.DebugLevel)
	c := startCluster(t, 2, logging, func(_ int, m *member.Options, s *server.Options) {
		m.Cluster.Secret, s.PeerSecrets = secret, []string{secret, "next-secret"}
	})
	n := c.nodes[0]
	for _, given := range [][]string{
		nil,
		{"Authorization", ""},
		{"Authorization", "Bearer"},
		{"Authorization", "Bearer "},
		{"Authorization", "Bearer wrong-secret"},
		{"Authorization", "Bearer " + secret[:len(secret)-1]},
		{"Authorization", "Bearer " + secret + "x"},
		{"Authorization", "Bearer  " + secret},
		{"Authorization", "bearer " + secret},
		{"Authorization", secret},
		{"Authorization", "Basic " + secret},
		{"Authorization", "Bearer " + secret + ",next-secret"},
		{"Authorization", "Bearer " + strings.Repeat("x", 10_000)},
		{"Authorization", "Bearer wrong", "Authorization", "Bearer " + secret},
		{"X-Peer-Secret", secret},
		{wire.HeaderFrom, c.nodes[1].name},
	} {
		if status := n.peerCall(t, n.client, given...); status != http.StatusUnauthorized {
			t.Errorf("%q: status %d", given, status)
		}
	}
	if entries, series := n.member.Limiter().Stats().Entries, metrics(t, n); entries != 0 ||
		series["weir_peer_checks_total"] != 0 ||
		series[`weir_rejected_requests_total{reason="peer"}`] != 16 {
		t.Errorf("%d states, %v peer checks, %v rejected", entries, series["weir_peer_checks_total"],
			series[`weir_rejected_requests_total{reason="peer"}`])
	}
	for _, good := range []string{secret, "next-secret"} {
		if status := n.peerCall(t, n.client, "Authorization", "Bearer "+good); status != http.StatusOK {
			t.Errorf("%s: status %d", good, status)
		}
	}
	if r := c.nodes[1].check(t, item(c.keysOf(n, 1)[0]))[0]; r.Status != "OK" || r.Metadata["degraded"] != "" {
		t.Error(describe(r))
	}
	lines := logs[0].find("a caller that is no peer called as one")
	if len(lines) == 0 || len(lines) > 10 || lines[0]["level"] != "error" ||
		lines[0]["from"] == nil || !strings.Contains(fmt.Sprint(lines[0]["hint"]), "WEIR_PEER_SECRET") {
		t.Errorf("the log has %v", lines)
	}
	for i := range logs {
		for _, word := range []string{secret, "next-secret", "wrong-secret"} {
			if strings.Contains(logs[i].String(), word) {
				t.Errorf("%s is in the log", word)
			}
		}
	}
}

// TestSecretsInRotation has two nodes with each pair of settings that a rotation goes through. The first secret is
// sent, all are accepted.
func TestSecretsInRotation(t *testing.T) {
	settings := [][]string{{"old"}, {"old", "new"}, {"new", "old"}, {"new"}}
	for _, a := range settings {
		for _, b := range settings {
			t.Run(fmt.Sprint(a, b), func(t *testing.T) {
				c := startCluster(t, 2, func(i int, m *member.Options, s *server.Options) {
					s.PeerSecrets = [][]string{a, b}[i]
					m.Cluster.Secret = s.PeerSecrets[0]
				})
				for i, n := range c.nodes {
					mine, others := [][]string{a, b}[i], [][]string{b, a}[i]
					want := "owner_refused"
					for _, accepted := range others {
						if accepted == mine[0] {
							want = ""
						}
					}
					if r := n.check(t, item(c.keysOf(c.nodes[1-i], 1)[0]))[0]; r.Status != "OK" || r.Metadata["degraded"] != want {
						t.Errorf("%v to %v: %s, want %q", mine, others, describe(r), want)
					}
				}
			})
		}
	}
}

// TestOtherSecret has two nodes with different secrets. Both log that, naming each other; neither counts for the other,
// nor shows its secret.
func TestOtherSecret(t *testing.T) {
	logs, logging := journals(2, zerolog.InfoLevel)
	c := startCluster(t, 2, logging, func(i int, m *member.Options, s *server.Options) {
		m.Cluster.Secret = fmt.Sprint("secret-of-", i)
		s.PeerSecrets = []string{m.Cluster.Secret}
	})
	a, b := c.nodes[0], c.nodes[1]
	key := c.keysOf(b, 1)[0]
	for range 5 {
		r := a.check(t, item(key))[0]
		if r.Status != "OK" || r.Metadata["degraded"] != "owner_refused" || r.Metadata["owner"] != a.name {
			t.Error(describe(r))
		}
	}
	if got := a.stateOf(t, b); got != "up" {
		t.Errorf("it is %s", got)
	}
	calls, called := logs[0].find("a call to a peer failed"), logs[1].find("a caller that is no peer called as one")
	if len(calls) == 0 || calls[0]["level"] != "error" || calls[0]["peer"] != b.name ||
		!strings.Contains(fmt.Sprint(calls[0]["hint"]), "WEIR_PEER_SECRET") {
		t.Errorf("the calling node logs %v in\n%s", calls, logs[0])
	}
	if len(called) == 0 || called[0]["level"] != "error" || called[0]["claims_to_be"] != a.name ||
		!strings.Contains(fmt.Sprint(called[0]["hint"]), "WEIR_PEER_SECRET") {
		t.Errorf("the called node logs %v in\n%s", called, logs[1])
	}
	if r := b.check(t, item(key, "hits", 0))[0]; *r.Remaining != 10 {
		t.Errorf("it counted: %s", describe(r))
	}
	if text := logs[0].String() + logs[1].String(); strings.Contains(text, "secret-of-") {
		t.Errorf("a secret is in the log:\n%s", text)
	}
}

// TestNoPeers has a node that is alone called as a peer.
func TestNoPeers(t *testing.T) {
	n := startNode(t, 100)
	if status := n.peerCall(t, n.client); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
	if got := metrics(t, n)["weir_state_entries"]; got != 0 {
		t.Errorf("it holds %v states", got)
	}
}

// An authority signs certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = filepath.Join(a.dir, "ca.pem")
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes a certificate for some names and addresses, and its key, to files.
func (a *authority) issue(t *testing.T, name string, hosts ...string) (certFile, keyFile string) {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", keyDER)
	return certFile, keyFile
}

// client returns a client that trusts the authority, and shows a certificate if there is a file of one.
func (a *authority) client(t *testing.T, certFile, keyFile string) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(a.cert)
	if certFile != "" {
		cert, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// withTLS issues certificates for 127.0.0.1 to nodes. With clients set these need some too.
func (a *authority) withTLS(t *testing.T, clients bool) setting {
	t.Helper()
	return func(i int, m *member.Options, s *server.Options) {
		certFile, keyFile := a.issue(t, fmt.Sprint("node-", i), "127.0.0.1")
		caFile := ""
		if clients {
			caFile = a.file
		}
		files, err := server.LoadTLS(certFile, keyFile, caFile)
		if err != nil {
			t.Fatal(err)
		}
		s.TLS, m.Cluster.TLS = files, files.Client
	}
}

// startTLSCluster starts a cluster whose nodes the test asks with a client of the authority's.
func startTLSCluster(t *testing.T, n int, a *authority, settings ...setting) *cluster {
	t.Helper()
	certFile, keyFile := a.issue(t, "tester", "tester.test")
	client := a.client(t, certFile, keyFile)
	c := startCluster(t, n, settings...)
	for _, n := range c.nodes {
		n.client = client
	}
	return c
}

// TestTLSCluster counts over TLS, with a secret or with certificates, always by HTTP/2.
func TestTLSCluster(t *testing.T) {
	a := newAuthority(t)
	for _, test := range []struct {
		name    string
		clients bool
		secret  string
	}{
		{"certificates", true, ""},
		{"certificates and a secret", true, "s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			logs, logging := journals(3, zerolog.DebugLevel)
			c := startTLSCluster(t, 3, a, logging, a.withTLS(t, test.clients), func(_ int, m *member.Options,
				s *server.Options) {
				if m.Cluster.Secret = test.secret; test.secret != "" {
					s.PeerSecrets = []string{test.secret}
				}
			})
			keys, owners := c.mixedKeys(20)
			for hit, n := range c.nodes {
				for i, r := range n.checkKeys(t, keys) {
					if *r.Remaining != int64(9-hit) || r.Metadata["owner"] != owners[i].name || r.Metadata["degraded"] != "" {
						t.Errorf("item %d, of %s, asked at %s: %s", i, owners[i].name, n.name, describe(r))
					}
				}
			}
			calls := 0
			for i := range logs {
				for _, request := range logs[i].find("request") {
					if request["path"] == wire.BatchPath {
						calls++
						if request["proto"] != "HTTP/2.0" || request["status"] != 200. {
							t.Errorf("a call between nodes: %v", request)
						}
					}
				}
			}
			if calls != 6 {
				t.Errorf("the logs know of %d calls", calls)
			}
		})
	}
}

// TestTLSWithoutCA has no authority to verify by but the system's, which doesn't know the test's.
func TestTLSWithoutCA(t *testing.T) {
	a := newAuthority(t)
	c := startTLSCluster(t, 2, a, a.withTLS(t, false))
	n := c.nodes[0]
	n.client = a.client(t, "", "") // clients need none
	if r := n.check(t, item(c.keysOf(n, 1)[0]))[0]; r.Status != "OK" || r.Metadata["degraded"] != "" {
		t.Error(describe(r))
	}
	r := n.check(t, item(c.keysOf(c.nodes[1], 1)[0]))[0]
	if r.Status != "OK" || r.Metadata["degraded"] != "owner_unreachable" {
		t.Errorf("a certificate that can't be verified: %s", describe(r))
	}
}

// TestClientCertificates looks at what callers may do: without a certificate, ask for health; with one of the
// authority's, check; with one of a listed node's, or the secret on top, count as a peer.
func TestClientCertificates(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	c := startTLSCluster(t, 2, a, a.withTLS(t, true), func(_ int, m *member.Options, s *server.Options) {
		m.Cluster.Secret, s.PeerSecrets = "s3cret", []string{"s3cret"}
	})
	n := c.nodes[0]
	plain := a.client(t, "", "")
	appCert, appKey := a.issue(t, "app", "app.test")
	app := a.client(t, appCert, appKey)
	nodeCert, nodeKey := a.issue(t, "another-node", "another.test", "127.0.0.1")
	listed := a.client(t, nodeCert, nodeKey)
	foreignCert, foreignKey := stranger.issue(t, "foreign", "127.0.0.1")
	foreign := a.client(t, foreignCert, foreignKey)

	get := func(client *http.Client, path string) int {
		t.Helper()
		resp, err := client.Get(n.url + path)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	for path, want := range map[string][2]int{ // without and with
		"/healthz": {200, 200}, "/readyz": {200, 200},
		"/metrics": {401, 200}, "/v1/peers": {401, 200}, "/v1/check": {401, 405},
		"/": {401, 404}, "/healthz/": {401, 404}, "/HEALTHZ": {401, 404}, "/v1/../healthz": {401, 404},
		"//readyz": {401, 404},
	} {
		if got := get(plain, path); got != want[0] {
			t.Errorf("%s without a certificate: %d, want %d", path, got, want[0])
		}
		if got := get(app, path); got != want[1] {
			t.Errorf("%s with one: %d, want %d", path, got, want[1])
		}
		if got := get(foreign, path); got != 0 { // the handshake fails, or the client has nothing that fits
			if got != want[0] {
				t.Errorf("%s with one of another authority: %d", path, got)
			}
		}
	}
	secret := []string{"Authorization", "Bearer s3cret"}
	for _, test := range []struct {
		name    string
		client  *http.Client
		headers []string
		want    int
	}{
		{"nothing", plain, nil, 401},
		{"the secret alone", plain, secret, 401},
		{"a certificate", app, nil, 401},
		{"a certificate and the secret", app, secret, 200},
		{"a listed node's certificate", listed, nil, 200},
		{"a listed node's certificate and another secret", listed, []string{"Authorization", "Bearer no"}, 200},
	} {
		if got := n.peerCall(t, test.client, test.headers...); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
	if got := metrics(t, n)["weir_peer_checks_total"]; got != 3 {
		t.Errorf("%v were counted", got)
	}
	n.client = app
	if r := n.check(t, item(c.keysOf(n, 1)[0]))[0]; r.Status != "OK" {
		t.Error(describe(r))
	}
}

// TestPeerWithoutTLS mixes nodes with and without TLS. Neither counts for the other, and the logs tell why.
func TestPeerWithoutTLS(t *testing.T) {
	a := newAuthority(t)
	logs, logging := journals(2, zerolog.WarnLevel)
	secure := a.withTLS(t, true)
	c := startTLSCluster(t, 2, a, logging, func(i int, m *member.Options, s *server.Options) {
		if i == 0 {
			secure(i, m, s)
		}
	})
	keys, _ := c.mixedKeys(1) // before the nodes know of each other's state
	for i, n := range c.nodes {
		other := c.nodes[1-i]
		for range 3 {
			if r := n.check(t, item(keys[1-i]))[0]; r.Status != "OK" || r.Metadata["owner"] != n.name ||
				r.Metadata["degraded"] != "owner_unreachable" && r.Metadata["degraded"] != "owner_broken" {
				t.Errorf("%s to %s: %s", n.name, other.name, describe(r))
			}
		}
		lines := logs[i].find("peer is down")
		if len(lines) != 1 || lines[0]["peer"] != other.name || lines[0]["error"] == nil {
			t.Errorf("the log of %s doesn't say why:\n%s", n.name, logs[i])
		}
	}
}

// TestCertificateOfAnother has a node show a certificate for a name that isn't its own: the others don't take it for
// the node that they look for, and their logs name both.
func TestCertificateOfAnother(t *testing.T) {
	a := newAuthority(t)
	logs, logging := journals(2, zerolog.WarnLevel)
	c := startTLSCluster(t, 2, a, logging, a.withTLS(t, true), func(i int, m *member.Options, s *server.Options) {
		if i == 1 {
			certFile, keyFile := a.issue(t, "elsewhere", "elsewhere.test")
			files, err := server.LoadTLS(certFile, keyFile, a.file)
			if err != nil {
				t.Fatal(err)
			}
			s.TLS, m.Cluster.TLS = files, files.Client
		}
	})
	n, other := c.nodes[0], c.nodes[1]
	key := c.keysOf(other, 1)[0]
	for range 3 {
		r := n.check(t, item(key))[0]
		if r.Status != "OK" || r.Metadata["degraded"] != "owner_unreachable" || r.Metadata["owner"] != n.name {
			t.Error(describe(r))
		}
	}
	lines := logs[0].find("peer is down")
	if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0]["error"]), "127.0.0.1") {
		t.Errorf("the log says:\n%s", logs[0])
	}
}

// TestTLSFilesChange replaces certificate and key on disk, by good ones and bad ones, while a node serves.
func TestTLSFilesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		certFile, keyFile := a.issue(t, "node", "node.test")
		files, err := server.LoadTLS(certFile, keyFile, a.file)
		if err != nil {
			t.Fatal(err)
		}
		log := &journal{}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { files.Run(ctx, zerolog.New(log)) })
		defer running.Wait()
		defer cancel()

		// serials returns those of the certificates that the two sides of a connection show.
		serials := func() (server, client string, err error) {
			here, there := net.Pipe()
			defer here.Close()
			defer there.Close()
			config := files.Client("node.test")
			caller, called := tls.Client(here, config), tls.Server(there, files.Server())
			done := make(chan error, 1)
			go func() { done <- called.Handshake() }()
			if err := caller.Handshake(); err != nil {
				here.Close()
				<-done
				return "", "", err
			}
			go caller.Read(make([]byte, 1)) // what follows the handshake
			if err := <-done; err != nil {
				return "", "", err
			}
			return caller.ConnectionState().PeerCertificates[0].SerialNumber.String(),
				called.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
		}
		now := func(what string, changed bool, before string) string {
			t.Helper()
			<-time.After(10 * time.Second)
			synctest.Wait()
			server, client, err := serials()
			if err != nil || server != client || (server != before) != changed {
				t.Errorf("%s: server %s, client %s, before %s, %v", what, server, client, before, err)
			}
			return server
		}
		first := now("at first", true, "")
		now("unchanged", false, first)
		a.issue(t, "node", "node.test")
		second := now("a new pair", true, first)
		if lines := log.find("TLS files read again"); len(lines) != 1 {
			t.Errorf("the log says:\n%s", log)
		}

		good, err := os.ReadFile(certFile)
		if err != nil {
			t.Fatal(err)
		}
		goodKey, err := os.ReadFile(keyFile)
		if err != nil {
			t.Fatal(err)
		}
		complaints := 0
		for _, bad := range []struct {
			name string
			do   func()
		}{
			{"no file", func() { os.Remove(certFile) }},
			{"an empty file", func() { os.WriteFile(certFile, nil, 0o600) }},
			{"half a file", func() { os.WriteFile(certFile, good[:len(good)/2], 0o600) }},
			{"a certificate without its key", func() {
				a.issue(t, "node", "node.test")
				os.WriteFile(keyFile, goodKey, 0o600)
			}},
			{"no authority", func() { os.WriteFile(a.file, []byte("?"), 0o600) }},
		} {
			ca, err := os.ReadFile(a.file)
			if err != nil {
				t.Fatal(err)
			}
			bad.do()
			now(bad.name, false, second)
			if n := len(log.find("the TLS files have become unusable; the old ones stay in use")); n <= complaints {
				t.Errorf("%s: the log doesn't say so:\n%s", bad.name, log)
			} else {
				complaints = n
			}
			for file, text := range map[string][]byte{certFile: good, keyFile: goodKey, a.file: ca} {
				if err := os.WriteFile(file, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			now(bad.name+", repaired", false, second)
		}
		if strings.Contains(log.String(), "PRIVATE") {
			t.Error("a key is in the log")
		}

		// Another authority, for which the old certificate is no good.
		b := newAuthority(t)
		text, err := os.ReadFile(b.file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(a.file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		synctest.Wait()
		if server, _, err := serials(); err == nil {
			t.Errorf("the certificate %s of an authority that is gone still works", server)
		}
	})
}
