package retry

import "errors"

// Signal is what a server, or a layer below, says about sending a failed request
// again.
type Signal uint8

const (
	// NoSignal says nothing.
	NoSignal Signal = iota
	// Nack: nothing was done; the request is safe to send again, to another server.
	// It holds for the next caller only, who alone knows what it did besides.
	Nack
	// Never: the request must not be sent again, by no caller above either.
	Never
)

// How signals and the number of the attempt travel: as gRPC trailers and headers,
// and as HTTP headers, whose names ignore case.
const (
	SignalKey  = "switchyard-retry"
	AttemptKey = "switchyard-attempt" // 1 for the second attempt; the first has none

	nackValue  = "nack"
	neverValue = "never"
)

// Value returns the value of SignalKey.
func (s Signal) Value() string {
	switch s {
	case Nack:
		return nackValue
	case Never:
		return neverValue
	}
	return ""
}

// ParseSignal reads values of SignalKey; of several, Never wins. Values that are
// not known say nothing.
func ParseSignal(values []string) Signal {
	found := NoSignal
	for _, v := range values {
		switch v {
		case neverValue:
			return Never
		case nackValue:
			found = Nack
		}
	}
	return found
}

// Signaller is an error that carries a signal.
type Signaller interface {
	error
	RetrySignal() Signal
}

type signalled struct {
	error
	signal Signal
}

func (s *signalled) RetrySignal() Signal { return s.signal }
func (s *signalled) Unwrap() error       { return s.error }

// WithSignal returns err with a signal, for handlers that refuse a request (Nack)
// or that know that no attempt can succeed (Never). nil stays nil.
func WithSignal(err error, s Signal) error {
	if err == nil {
		return nil
	}
	return &signalled{err, s}
}

// SignalOf finds the signal of an error, the outermost one.
func SignalOf(err error) Signal {
	var s Signaller
	if errors.As(err, &s) {
		return s.RetrySignal()
	}
	return NoSignal
}

// Bare returns err without the signal that WithSignal gave it.
func Bare(err error) error {
	if s, ok := err.(*signalled); ok {
		return s.error
	}
	return err
}
