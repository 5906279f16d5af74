package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transport is how nodes speak to each other: mutual TLS, or in the clear.
type transport struct {
	serve  []grpc.ServerOption
	dial   []grpc.DialOption
	secure bool
}

// newTransport reads the certificates, if there are any.
func newTransport(c TLSConfig) (transport, error) {
	if c == (TLSConfig{}) {
		return transport{dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}, nil
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return transport{}, fmt.Errorf("cluster.tls.ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return transport{}, fmt.Errorf("cluster.tls.ca: %s has no certificate", c.CA)
	}
	// Handshakes are rare, so the files can be read for each: who renews a certificate needs
	// to restart nothing.
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("cluster.tls.cert and key: %w", err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return transport{}, err
	}
	server := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      roots,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() },
	}
	client := &tls.Config{
		MinVersion:           tls.VersionTLS13,
		RootCAs:              roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() },
	}
	return transport{
		serve:  []grpc.ServerOption{grpc.Creds(credentials.NewTLS(server))},
		dial:   []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(client))},
		secure: true,
	}, nil
}
