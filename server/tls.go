package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// A TLS holds a node's certificate, and the authority that signs those of others, read from files again as they change.
// It is safe for concurrent use.
type TLS struct {
	certFile, keyFile, caFile string
	current                   atomic.Pointer[material]
}

// A material is what the files held at one time.
type material struct {
	pem  [3]string
	cert *tls.Certificate
	ca   *x509.CertPool // nil without an authority's file
}

// LoadTLS reads the files. The authority's may be "": then clients need no certificate.
func LoadTLS(certFile, keyFile, caFile string) (*TLS, error) {
	t := &TLS{certFile: certFile, keyFile: keyFile, caFile: caFile}
	_, err := t.load()
	return t, err
}

// load reads the files again. It reports whether they hold something new, and keeps what it has if they make no sense.
func (t *TLS) load() (bool, error) {
	var m material
	for i, file := range []string{t.certFile, t.keyFile, t.caFile} {
		if file == "" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return false, err
		}
		m.pem[i] = string(text)
	}
	if old := t.current.Load(); old != nil && old.pem == m.pem {
		return false, nil
	}
	cert, err := tls.X509KeyPair([]byte(m.pem[0]), []byte(m.pem[1]))
	if err != nil {
		return false, fmt.Errorf("%s, %s: %w", t.certFile, t.keyFile, err)
	}
	m.cert = &cert
	if t.caFile != "" {
		m.ca = x509.NewCertPool()
		if !m.ca.AppendCertsFromPEM([]byte(m.pem[2])) {
			return false, fmt.Errorf("%s: no certificate in it", t.caFile)
		}
	}
	t.current.Store(&m)
	return true, nil
}

// reloadEvery is how often the files are looked at.
const reloadEvery = 10 * time.Second

// Run reads the files again at intervals until ctx ends.
func (t *TLS) Run(ctx context.Context, log zerolog.Logger) {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch changed, err := t.load(); {
		case err != nil:
			log.Error().Err(err).Msg("the TLS files have become unusable; the old ones stay in use")
		case changed:
			log.Info().Str("cert", t.certFile).Msg("TLS files read again")
		}
	}
}

// HasCA reports whether clients need a certificate.
func (t *TLS) HasCA() bool { return t.caFile != "" }

// Server is the configuration for connections to this node. Certificates are asked for but not demanded: that is the
// handler's matter, since health checks have none.
func (t *TLS) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m := t.current.Load()
			c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
			c.Certificates = []tls.Certificate{*m.cert}
			if m.ca != nil {
				c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, m.ca
			}
			return c, nil
		},
	}
}

// Client is the configuration for calls to the peer at a host: this node's certificate, and the authority (or the
// system's ones) to verify by that the peer's is for that name or address.
func (t *TLS) Client(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return t.current.Load().cert, nil
		},
		// The library verifies against a fixed pool; ours may change. What it would do is done below.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the peer has no certificate")
			}
			options := x509.VerifyOptions{Roots: t.current.Load().ca, DNSName: host, Intermediates: x509.NewCertPool()}
			for _, cert := range state.PeerCertificates[1:] {
				options.Intermediates.AddCert(cert)
			}
			_, err := state.PeerCertificates[0].Verify(options)
			return err
		},
	}
}
