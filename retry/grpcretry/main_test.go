package grpcretry

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		serve() // this process is one of the servers of process_test.go
		return
	}
	goleak.VerifyTestMain(m)
}
