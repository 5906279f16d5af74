package engine

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/switchyard-dev/switchyard/shard"
)

// The head of a command is everything but its arguments, as it stands in a log:
//
//	version    1 byte, headVersion
//	view       1 byte: how often bucket_count had been doubled, as the caller knew it
//	bucket     4 bytes, big endian
//	time       8 bytes, big endian, nanoseconds since 1970 UTC
//	length     1 byte, of the name
//	function   the name
//
// The arguments are kept beside it, so that they are never copied to be logged.
const (
	headVersion = 1
	headFixed   = 15
)

// MaxView is the largest view of a command.
const MaxView = 31

// MaxFunctionName is the largest length of a function's name, in bytes.
const MaxFunctionName = 255

// AppendHead appends the head of cmd to b.
func AppendHead(b []byte, cmd *Command) []byte {
	b = append(b, headVersion, cmd.View)
	b = binary.BigEndian.AppendUint32(b, uint32(cmd.Bucket))
	b = binary.BigEndian.AppendUint64(b, uint64(cmd.Time.UnixNano()))
	b = append(b, byte(len(cmd.Function)))
	return append(b, cmd.Function...)
}

// Names gives each function name its one string, so that reading a head does not
// allocate. The zero value is ready; it is for one goroutine.
type Names struct{ m map[string]string }

// maxNames bounds Names against a log full of distinct names.
const maxNames = 4096

func (n *Names) of(b []byte) string {
	if s, ok := n.m[string(b)]; ok {
		return s
	}
	s := string(b)
	if n.m == nil {
		n.m = make(map[string]string)
	}
	if len(n.m) < maxNames {
		n.m[s] = s
	}
	return s
}

// ParseHead reads a head into cmd and leaves cmd.Args alone.
func ParseHead(head []byte, names *Names, cmd *Command) error {
	if len(head) < headFixed {
		return fmt.Errorf("the head of a command is %d bytes long, at least %d are needed", len(head), headFixed)
	}
	if head[0] != headVersion {
		return fmt.Errorf("a command has format version %d; this version of Switchyard knows %d", head[0], headVersion)
	}
	if head[1] > MaxView {
		return fmt.Errorf("a command has a view %#x that this version of Switchyard does not know", head[1])
	}
	if n := int(head[14]); len(head) != headFixed+n || n == 0 {
		return fmt.Errorf("the head of a command is %d bytes long with a name of %d", len(head), n)
	}
	cmd.View = head[1]
	cmd.Bucket = shard.BucketID(binary.BigEndian.Uint32(head[2:]))
	cmd.Time = time.Unix(0, int64(binary.BigEndian.Uint64(head[6:])))
	cmd.Function = names.of(head[headFixed:])
	return nil
}
