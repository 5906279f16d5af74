package balance

import (
	"os"
	"testing"

	"github.com/zeromicro/go-zero/core/logx"
)

func TestMain(m *testing.M) {
	logx.Disable() // go-zero's picker logs from within a pick
	os.Exit(m.Run())
}
