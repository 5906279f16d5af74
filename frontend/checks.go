package frontend

import (
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/switchyard-dev/switchyard/api/reason"
)

// invalid makes an INVALID_ARGUMENT error about a field.
func invalid(r, field, format string, args ...any) error {
	return reason.New(codes.InvalidArgument, r, map[string]string{"field": field}, format, args...)
}

// tooLarge makes an INVALID_ARGUMENT error about a field that is over a limit.
func tooLarge(r, field string, limit int, format string, args ...any) error {
	return reason.New(codes.InvalidArgument, r,
		map[string]string{"field": field, "limit": strconv.Itoa(limit)}, format, args...)
}

// Bits of charClass.
const (
	charName = 1 << iota // may stand in a queue or namespace name
	charHex
	charUpperHex
	charControl
)

var charClass = func() (class [256]uint8) {
	for c := range 256 {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			c == '.', c == '_', c == '~', c == '-':
			class[c] |= charName
		}
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f':
			class[c] |= charHex
		case c >= 'A' && c <= 'F':
			class[c] |= charHex | charUpperHex
		case c < 0x20 || c == 0x7f:
			class[c] |= charControl
		}
	}
	return class
}()

// checkName checks a queue or namespace name.
func (l *Limits) checkName(r, field, name string) error {
	switch {
	case name == "":
		return invalid(r, field, "%s is empty", field)
	case len(name) > l.NameBytes:
		return tooLarge(r, field, l.NameBytes, "%s is %d bytes long; at most %d are allowed", field, len(name), l.NameBytes)
	case name[0] == '_':
		return invalid(r, field, "%s %q starts with an underscore; such names are reserved", field, name)
	}
	for i := 0; i < len(name); i++ {
		if charClass[name[i]]&charName == 0 {
			c, _ := utf8.DecodeRuneInString(name[i:])
			return invalid(r, field, "%s %q has the character %q; letters, digits and . _ ~ - are allowed", field, name, c)
		}
	}
	return nil
}

// namespace checks a namespace, which is the default one when it is empty.
func (l *Limits) namespace(name *string) error {
	if *name == "" {
		*name = DefaultNamespace
		return nil
	}
	return l.checkName(reason.InvalidNamespace, "namespace", *name)
}

// address fills in the default namespace and checks both names.
func (l *Limits) address(namespace *string, queue string) error {
	if err := l.namespace(namespace); err != nil {
		return err
	}
	return l.checkName(reason.InvalidQueueName, "queue", queue)
}

// parseID says whether id is a UUID in its usual form of 36 characters, and
// whether it has upper case letters. The UUID of all zeros is none.
func parseID(id string) (ok, upper bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return false, false
	}
	all, digits := uint8(charHex), uint8(0)
	var some uint8
	for _, part := range [...]string{id[:8], id[9:13], id[14:18], id[19:23], id[24:]} {
		for i := 0; i < len(part); i++ {
			class := charClass[part[i]]
			all &= class
			some |= class
			digits |= part[i] - '0'
		}
	}
	return all&charHex != 0 && digits != 0, some&charUpperHex != 0
}

// checkID checks a task id and puts it into lower case, so that one UUID is one
// task however it is written.
func checkID(field string, id *string) error {
	ok, upper := parseID(*id)
	if !ok {
		return invalid(reason.InvalidTaskID, field, "%s %q is not a UUID; version 7 in its 36-character form is recommended", field, shorten(*id))
	}
	if upper {
		b := []byte(*id)
		for i, c := range b {
			if c >= 'A' && c <= 'F' {
				b[i] = c + 'a' - 'A'
			}
		}
		*id = string(b)
	}
	return nil
}

// shorten cuts a value that is quoted in an error text.
func shorten(s string) string { return cut(s, 64) }

// cut cuts s to at most n bytes without breaking a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// The range of a duration that the wire can carry and time.Duration can hold.
const maxDurationSeconds = int64((1<<63 - 1) / int64(time.Second))

// checkDuration checks that d is well-formed and within [low, high]. d is not nil.
func checkDuration(r, field string, d *durationpb.Duration, low, high time.Duration) error {
	if s, n := d.Seconds, d.Nanos; s < -maxDurationSeconds || s >= maxDurationSeconds ||
		n <= -1e9 || n >= 1e9 || (s > 0 && n < 0) || (s < 0 && n > 0) {
		return invalid(r, field, "%s is not a valid duration", field)
	}
	if v := time.Duration(d.Seconds)*time.Second + time.Duration(d.Nanos); v < low || v > high {
		return invalid(r, field, "%s is %v; it must be between %v and %v", field, v, low, high)
	}
	return nil
}

// checkLease checks a lease time, which may be nil.
func (l *Limits) checkLease(field string, d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	return checkDuration(reason.InvalidDuration, field, d, l.MinLeaseTime, l.MaxLeaseTime)
}

// checkRunAt checks a time to run at, which may be nil or past.
func (l *Limits) checkRunAt(at *timestamppb.Timestamp, now time.Time) error {
	if at == nil {
		return nil
	}
	if err := at.CheckValid(); err != nil {
		return invalid(reason.InvalidTime, "run_at", "run_at is not a valid time")
	}
	if at.Seconds-now.Unix() > int64(l.Delay/time.Second) {
		return invalid(reason.InvalidTime, "run_at", "run_at is %s; it must be within %v from now",
			at.AsTime().Format(time.RFC3339), l.Delay)
	}
	return nil
}

// checkToken checks the form of a lease token; what it means is the backend's.
func checkToken(token []byte) error {
	switch {
	case len(token) == 0:
		return invalid(reason.InvalidLeaseToken, "lease_token", "the lease token is empty; take it from the polled task")
	case len(token) > maxTokenBytes:
		return invalid(reason.InvalidLeaseToken, "lease_token", "the lease token is %d bytes long and not one of this server", len(token))
	}
	return nil
}

const (
	maxTokenBytes     = 512
	maxPageTokenBytes = 4096
)

// checkBatch checks the number of items of a request.
func (l *Limits) checkBatch(field string, n int) error {
	switch {
	case n == 0:
		return invalid(reason.BatchEmpty, field, "the request has no %s", field)
	case n > l.BatchItems:
		return tooLarge(reason.BatchTooLarge, field, l.BatchItems,
			"the request has %d %s; at most %d are allowed, split it", n, field, l.BatchItems)
	}
	return nil
}

// page checks and fills in a page size and checks a token's length.
func (l *Limits) page(size *int32, token string) error {
	switch {
	case *size == 0:
		*size = int32(l.DefaultPageSize)
	case *size < 0 || int(*size) > l.PageSize:
		return tooLarge(reason.InvalidPageSize, "page_size", l.PageSize,
			"page_size is %d; it must be between 1 and %d", *size, l.PageSize)
	}
	if len(token) > maxPageTokenBytes {
		return invalid(reason.InvalidPageToken, "page_token", "the page token is not one of this server")
	}
	return nil
}
